"""Seconds by phase."""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass
class Laps:
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
