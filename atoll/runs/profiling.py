"""`atoll run --profile`: where the time of a few rounds goes, as a table, a page and a trace."""

from __future__ import annotations

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
        from atoll.report import profile_page  # only a run that is profiled waits for it

        phases = self.phases()
        page = profile_page(phases, [heard.spans for heard in self.heard])
        self.folder.write_phases({"rounds": len(self.heard), "seconds": phases}, page)
