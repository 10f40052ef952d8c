"""Seconds by phase."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from atoll.core import Begun, Job, Result
from atoll.core import begun as begin
from atoll.engines import AnyEngine
from atoll.phases import phase


@dataclass
class Timed:
    """An engine that adds up its seconds."""

    inner: AnyEngine
    seconds: float = 0.0

    def run(self, job: Job) -> Result:
        """Do the job."""
        before = time.perf_counter()
        with phase("engine"):
            result = self.inner.run(job)
        self.seconds += time.perf_counter() - before
        return result

    def begin(self, job: Job) -> Begun:
        """The same in two parts; what the host does between them is not the engine's."""
        before = time.perf_counter()
        with phase("engine"):
            begun = begin(self.inner, job)
        self.seconds += time.perf_counter() - before
        return Begun(begun.total, lambda: self._waited(begun))

    def _waited(self, begun: Begun) -> Result:
        before = time.perf_counter()
        with phase("engine"):
            result = begun.result()
        self.seconds += time.perf_counter() - before
        return result


@dataclass
class Clock:
    """Seconds by phase."""

    seconds: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.perf_counter)

    def lap(self, phase: str) -> None:
        """What has passed since the last lap was this phase."""
        now = time.perf_counter()
        self.seconds[phase] = round(now - self.last, 6)
        self.last = now

    def move(self, out_of: str, into: str, seconds: float) -> None:
        """Part of one phase was really another."""
        self.seconds[into] = round(seconds, 6)
        self.seconds[out_of] = round(self.seconds[out_of] - seconds, 6)
