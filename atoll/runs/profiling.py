"""`atoll run --profile`: where the time of a few rounds goes, as a table, a page and a trace."""

from __future__ import annotations

import html
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from atoll.phases import ORDER, Heard, listening
from atoll.records import RunFolder

WARM, ROUNDS = 1, 3  # rounds before, and rounds that are looked at


class Profile:
    """Looks at a few rounds of a run. Captured steps run piece by piece meanwhile, which changes no result."""

    def __init__(self, folder: RunFolder, device: torch.device) -> None:
        self.folder, self.device = folder, device
        self.heard: list[Heard] = []
        self.first: int | None = None

    @contextmanager
    def round(self, number: int, rounds: int) -> Iterator[None]:
        """Around every round of so many; most are left alone."""
        if self.first is None:
            self.first = min(number + WARM, rounds - 1)
        if not self.first <= number < self.first + ROUNDS:
            yield
            return
        last = number == min(self.first + ROUNDS, rounds) - 1
        wait = (lambda: torch.cuda.synchronize(self.device)) if self.device.type == "cuda" else None
        with self._traced(last), listening(wait) as heard, heard.hear("everything else"):
            yield
        self.heard.append(heard)
        self.write()

    @contextmanager
    def _traced(self, last: bool) -> Iterator[None]:
        """The last of the rounds is also traced kernel by kernel."""
        if not last:
            yield
            return
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if self.device.type == "cuda" else [])
        with profile(activities=kinds) as profiler:
            yield
        self.folder.profile.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self.folder.trace))

    def phases(self) -> dict[str, float]:
        """Seconds of each phase in a mean round, in the order of a round."""
        names = [*ORDER, "everything else"]
        return {k: sum(h.seconds.get(k, 0.0) for h in self.heard) / max(1, len(self.heard)) for k in names}

    def write(self) -> None:
        """The table as JSON and the page, as far as they go."""
        phases = self.phases()
        self.folder.write_phases({"rounds": len(self.heard), "seconds": phases}, page(phases, self.heard))


def page(phases: dict[str, float], heard: list[Heard]) -> str:
    """A page that opens offline: the table, and every stretch of the rounds on a line of time."""
    whole = sum(phases.values()) or 1.0
    rows = "".join(
        f"<tr><td><i style='background:{_colour(k)}'></i>{html.escape(k)}</td><td>{1e3 * v:.3f}</td>"
        f"<td>{v / whole:.1%}</td></tr>"
        for k, v in phases.items()
    )
    lines = "".join(_line(i + 1, h) for i, h in enumerate(heard))
    return _PAGE.format(rounds=len(heard), rows=rows, lines=lines)


def _line(number: int, heard: Heard) -> str:
    first = min(s[1] for s in heard.spans)
    length = max(s[2] for s in heard.spans) - first or 1.0
    threads = {t: i for i, t in enumerate(dict.fromkeys(s[3] for s in heard.spans))}
    bars = "".join(_bar(s, first, length, threads[s[3]]) for s in sorted(heard.spans, key=lambda s: s[1] - s[2])[:5000])
    title = f"Round {number}: {1e3 * length:.2f} ms"
    tall = 22 * len(threads)
    return f"<h3>{title}</h3><svg viewBox='0 0 1000 {tall}' preserveAspectRatio='none' height='{tall}'>{bars}</svg>"


def _bar(span: tuple[str, float, float, int], first: float, length: float, row: int) -> str:
    name, began, ended, _ = span
    x, wide = 1000 * (began - first) / length, max(0.2, 1000 * (ended - began) / length)
    label = html.escape(f"{name}: {1e3 * (ended - began):.3f} ms")
    return (
        f"<rect x='{x:.2f}' y='{22 * row}' width='{wide:.2f}' height='20' fill='{_colour(name)}'>"
        f"<title>{label}</title></rect>"
    )


_COLOURS = ("#4e79a7", "#76b7b2", "#e15759", "#b07aa1", "#59a14f", "#bab0ac", "#edc948", "#f28e2b", "#9c755f")


def _colour(name: str) -> str:
    return dict(zip(ORDER, _COLOURS, strict=True)).get(name, "#d9d9d9")


_PAGE = """<!doctype html><meta charset="utf-8"><title>Profile</title>
<style>body{{font:15px system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}}
table{{border-collapse:collapse}}td,th{{padding:.25rem .9rem;text-align:right;border-bottom:1px solid #ddd}}
td:first-child,th:first-child{{text-align:left}}svg{{width:100%;display:block}}
i{{display:inline-block;width:.8em;height:.8em;margin-right:.5em}}p{{color:#555}}</style>
<h1>Where a round's time goes</h1>
<p>The mean of {rounds} rounds, run piece by piece so that phases can be told apart: captured rounds are faster, and by
how much is in the record's seconds. A phase does not count the phases inside it; threads are added up.</p>
<table><tr><th>phase</th><th>ms</th><th>share</th></tr>{rows}</table>{lines}
<p>trace.json beside this page holds one round kernel by kernel: open it in chrome://tracing or in Perfetto.</p>"""
