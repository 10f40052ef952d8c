"""Which rank trains which client: the longest first, each to the rank that has the least to do."""

from __future__ import annotations

import heapq
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from atoll.errors import ConfigError

Schedule = Callable[[Sequence[float], int], list[int]]
_WARM = 2  # rounds that say nothing of those to come: steps are captured, buffers are made
_WINDOW = 16  # rounds that are looked back on
_MOST = 4096.0  # a base cost of more steps than this is all there is


def greedy(costs: Sequence[float], ranks: int) -> list[int]:
    """Longest processing time first (Graham, 1969): at most 4/3 of the shortest possible round.

    >>> greedy([1.0, 5.0, 4.0, 2.0], 2)
    [0, 0, 1, 1]
    """
    loads = [(0.0, r) for r in range(ranks)]
    assignment = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        load, r = loads[0]
        assignment[i] = r
        heapq.heapreplace(loads, (load + costs[i], r))
    return assignment


def in_turn(costs: Sequence[float], ranks: int) -> list[int]:
    """One to each rank in turn, whatever they cost: what `greedy` is compared with."""
    return [i % ranks for i in range(len(costs))]


def deal(steps: Tensor, ranks: int) -> Tensor:
    """Every client's home: (N,) ranks, from the steps of all N clients. Clients with memory always train at home.

    Dealt like cards, there and back, from the longest client to the shortest: homes hold as many clients, and about as
    many steps. Equal clients are dealt in a scattered order, so that a pattern in a cohort's ids does not meet ours.
    """
    n = len(steps)
    scattered = np.arange(n, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    order = np.lexsort((scattered, -steps.cpu().numpy()))
    turn, place = np.divmod(np.arange(n), ranks)
    homes = np.empty(n, dtype=np.int64)
    homes[order] = np.where(turn % 2, ranks - 1 - place, place)
    return torch.from_numpy(homes)


def balance() -> str:
    """What ATOLL_BALANCE says: "seconds" (the default), or "steps", which repeats a run bit for bit."""
    word = os.environ.get("ATOLL_BALANCE", "seconds")
    if word not in ("seconds", "steps"):
        raise ConfigError(f"ATOLL_BALANCE: must be 'seconds' or 'steps' (got {word!r}). Leave it out for 'seconds'.")
    return word


@dataclass
class Costs:
    """What a client costs: base + steps, in steps; the base is fitted to the seconds of past rounds.

    Only plain arithmetic on numbers that every rank has, so that all find the same schedule with no word between them.
    The base is rounded to a power of 2: noise in the seconds does not move clients about.
    """

    base: float = 0.0
    measured: bool = field(default_factory=lambda: balance() == "seconds")
    seen: deque[list[tuple[int, int, float]]] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    rounds: int = 0

    def __call__(self, steps: Sequence[int]) -> list[float]:
        """The cost of clients with so many steps."""
        return [1.0 if math.isinf(self.base) else self.base + s for s in steps]

    def learn(self, observations: Sequence[tuple[int, int, float]]) -> None:
        """Clients, steps and seconds of every rank in a round."""
        self.rounds += 1
        if self.rounds > _WARM and self.measured:
            self.seen.append([x for x in observations if x[0]])
            self.base = _rounded(_fitted([x for r in self.seen for x in r]))


def _fitted(observations: Sequence[tuple[int, int, float]]) -> float:
    """Base over step of seconds = base * clients + step * steps, by least squares, neither below 0."""
    nn = ns = ss = nt = st = 0.0
    for n, s, t in observations:
        nn, ns, ss, nt, st = nn + n * n, ns + n * s, ss + s * s, nt + n * t, st + s * t
    determinant = nn * ss - ns * ns
    if determinant <= 1e-6 * nn * ss:  # clients all alike: nothing tells the two apart, and nothing depends on it
        return 0.0
    base, step = (nt * ss - st * ns) / determinant, (st * nn - nt * ns) / determinant
    if base <= 0:
        return 0.0
    return base / step if step > 0 else math.inf


def _rounded(ratio: float) -> float:
    """To the nearest power of 2, by exact operations only."""
    if ratio < 0.125 or ratio > _MOST:
        return 0.0 if ratio < 0.125 else math.inf
    part, power = math.frexp(ratio)
    return math.ldexp(1.0, power if part >= 0.75 else power - 1)
