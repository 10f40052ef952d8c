"""How fast an engine really was, for the memory of measurements that it was chosen by."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from atoll.core import Job
from atoll.engines import AnyEngine, Choice, Ground, Probe, default_path, taken, work_mark

_ENOUGH = 3  # rounds whose fastest is taken for what a round takes


@dataclass
class Pace:
    """The fewest seconds that a client's step took."""

    seconds: float = math.inf
    rounds: int = 0

    def add(self, seconds: float, steps: int) -> None:
        """A round with so many steps of clients."""
        self.seconds = min(self.seconds, seconds / max(1, steps))
        self.rounds += 1

    def confirm(self, choice: Choice, ground: Ground, trial: Callable[[], Job], engine: AnyEngine) -> None:
        """Let the memory of measurements know how long it really took."""
        if choice.name == "auto" and self.rounds >= _ENOUGH:
            Probe(default_path()).confirm(work_mark(choice, ground, trial()), taken(engine), self.seconds)
