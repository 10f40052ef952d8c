"""Coalitions of clients and what they are worth: values asked for many at a time, remembered, and counted.

A coalition is a whole number: bit i is set if client i is in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from atoll.errors import ConfigError

Values = Callable[[Sequence[int]], Sequence[float]]  # of coalitions: what each is worth


@dataclass
class Coalitions:
    """A game of `n` clients. Every coalition is valued once; those asked for together are valued together."""

    n: int
    values: Values
    known: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def whole(self) -> int:
        return (1 << self.n) - 1

    @property
    def count(self) -> int:
        """Coalitions that had to be valued."""
        return len(self.known)

    def worth(self, coalitions: Iterable[int]) -> list[float]:
        """What each is worth."""
        asked = list(coalitions)
        new = [c for c in dict.fromkeys(asked) if c not in self.known]
        if new:
            began = time.perf_counter()
            self.known.update(zip(new, map(float, self.values(new)), strict=True))
            self.seconds += time.perf_counter() - began
        return [self.known[c] for c in asked]


def members(coalition: int) -> Iterator[int]:
    """The clients in it.

    >>> list(members(0b1011))
    [0, 1, 3]
    """
    i = 0
    while coalition >> i:
        if coalition >> i & 1:
            yield i
        i += 1


def check_clients(n: int, most: int, method: str) -> None:
    """Refuse what would take longer than anybody waits."""
    if n > most:
        raise ConfigError(
            f"--method: {method} of {n} clients needs {2**n:,} coalitions; at most {most} clients. Use tmc or gtg."
        )
