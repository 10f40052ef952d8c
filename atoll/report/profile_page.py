"""Where the time of a few rounds went, as a page in the style of reports: a table, and every stretch on a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atoll.report.render_html import template

Span = tuple[str, float, float, int]  # a phase, when it began and ended in seconds, its thread
_COLOURS = (
    "#4e79a7",
    "#76b7b2",
    "#e15759",
    "#b07aa1",
    "#59a14f",
    "#bab0ac",
    "#edc948",
    "#f28e2b",
    "#9c755f",
    "#8c8c96",
)
_MOST = 5000  # stretches of a round: the longest
_TALL = 22  # of a thread's line


@dataclass(frozen=True)
class RoundBars:
    """The stretches of a round on lines of time, one for each thread; the line is 1,000 wide."""

    number: int
    milliseconds: float
    height: int
    bars: list[tuple[float, int, float, str, str]]  # x, y, width, colour, what it says


def profile_page(phases: Mapping[str, float], rounds: Sequence[Sequence[Span]]) -> str:
    """A page that opens offline; `phases`: seconds of each in a mean round, in their order."""
    whole = sum(phases.values()) or 1.0
    colours = dict(zip(phases, _COLOURS, strict=True))
    rows = [(name, colours[name], f"{1e3 * s:.3f}", f"{s / whole:.1%}") for name, s in phases.items()]
    lines = [_line(number, spans, colours) for number, spans in enumerate(rounds, start=1)]
    return template("profile").render(rows=rows, rounds=lines)


def _line(number: int, spans: Sequence[Span], colours: Mapping[str, str]) -> RoundBars:
    first = min(began for _, began, _, _ in spans)
    length = max(ended for _, _, ended, _ in spans) - first or 1.0
    threads = {thread: i for i, thread in enumerate(dict.fromkeys(thread for *_, thread in spans))}
    bars = []
    for name, began, ended, thread in sorted(spans, key=lambda span: span[1] - span[2])[:_MOST]:
        x, wide = 1000 * (began - first) / length, max(0.2, 1000 * (ended - began) / length)
        said = f"{name}: {1e3 * (ended - began):.3f} ms"
        bars.append((x, _TALL * threads[thread], wide, colours[name], said))
    return RoundBars(number, 1e3 * length, _TALL * len(threads), bars)
