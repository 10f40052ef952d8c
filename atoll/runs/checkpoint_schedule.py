"""When a checkpoint is worth its time.

`checkpoint.every` says after how many rounds one is due. Where writing it takes long (banded noise keeps dozens of
models), it waits until the rounds since the last one have taken ten times as long: for each run of a stack, since the
others write theirs in the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_CHEAP = 0.25  # seconds: never postponed
_SHARE = 10.0  # times what the last one took must be spent on rounds first


class Sharing:
    """Runs that go together: whoever waits for one's checkpoint waits for all."""

    def __init__(self) -> None:
        self.runs: set[int] = set()


class CheckpointSchedule:
    """The checkpoints of one run.

    >>> clock = iter([0.0, 1.0, 1.0, 3.0, 12.0, 24.0])
    >>> spacing = CheckpointSchedule(10, clock=lambda: next(clock)).__enter__()
    >>> spacing.turn(9), spacing.turn(10), spacing.due()
    (False, True, True)
    >>> spacing.write(lambda: None)  # takes two seconds
    >>> spacing.due(), spacing.due()
    (False, True)
    """

    def __init__(
        self, every: int, sharing: Sharing | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.every, self.clock, self.sharing = every, clock, sharing or Sharing()
        self.took, self.last = 0.0, clock()

    def __enter__(self) -> CheckpointSchedule:
        self.sharing.runs.add(id(self))
        return self

    def __exit__(self, *why: object) -> None:
        """The run is over, and slows the others down no more."""
        self.sharing.runs.discard(id(self))

    def turn(self, done: int) -> bool:
        """May one be written after so many rounds?"""
        return self.every > 0 and done % self.every == 0

    def due(self) -> bool:
        """Is it worth it?"""
        return self.clock() - self.last >= _SHARE * self.took * len(self.sharing.runs) or self.took < _CHEAP

    def write(self, checkpoint: Callable[[], None]) -> None:
        """Write one, and remember what it took."""
        began = self.clock()
        checkpoint()
        self.last = self.clock()
        self.took = self.last - began
