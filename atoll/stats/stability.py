"""Rank stability: does the order of the methods change if one seed is left out?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from atoll.errors import DataError
from atoll.stats.paired import BySeed, align
from atoll.stats.validate import ROUNDING, Floats


@dataclass(frozen=True)
class Swap:
    """Without this seed, `first` is no longer ahead of `second` (or, if they were equal, one of them is ahead)."""

    seed: int
    first: str
    second: str


@dataclass(frozen=True)
class Stability:
    """The order of the means over all seeds, the best first, and every change that leaving out one seed makes."""

    order: tuple[str, ...]
    seeds: tuple[int, ...]
    swaps: tuple[Swap, ...]
    left_out: str = ""  # seeds that not every method has

    @property
    def changed(self) -> tuple[int, ...]:
        """The seeds without which the order is another."""
        return tuple(seed for seed in self.seeds if any(swap.seed == seed for swap in self.swaps))

    @property
    def share(self) -> float:
        """The share of the seeds without which the order is another: 0 is stable."""
        return len(self.changed) / len(self.seeds)

    @property
    def pairs(self) -> Mapping[tuple[str, str], tuple[int, ...]]:
        """The pairs that swap, in the order of the ranking, and the seeds that do it."""
        seeds_of_pair: dict[tuple[str, str], tuple[int, ...]] = {}
        for swap in self.swaps:
            seeds_of_pair[swap.first, swap.second] = (*seeds_of_pair.get((swap.first, swap.second), ()), swap.seed)
        return seeds_of_pair


def rank_stability(methods: Mapping[str, BySeed], higher: bool = True) -> Stability:
    """Order the methods of one row by their means over common seeds; then again without each seed.

    Equal means are an order of their own, so a tie that leaving out a seed makes or breaks is a change too.

    >>> stability = rank_stability({"fedavg": {0: 0.70, 1: 0.71, 2: 0.90}, "fedprox": {0: 0.72, 1: 0.73, 2: 0.80}})
    >>> stability.order, stability.changed, round(stability.share, 2)
    (('fedavg', 'fedprox'), (2,), 0.33)
    """
    aligned = align(methods)
    if len(aligned.seeds) < 2:
        raise DataError(f"stability: needs two common seeds or more (got {len(aligned.seeds)}). Run more seeds.")
    names = list(aligned.values)
    values = np.stack(list(aligned.values.values())) * (1 if higher else -1)
    order = sorted(range(len(names)), key=lambda i: -values[i].mean())
    swaps = tuple(
        Swap(seed, names[i], names[j])
        for at, seed in enumerate(aligned.seeds)
        for i, j in combinations(order, 2)
        if _ahead(np.delete(values, at, 1), i, j) != _ahead(values, i, j)
    )
    return Stability(tuple(names[i] for i in order), aligned.seeds, swaps, aligned.note)


def _ahead(values: Floats, i: int, j: int) -> int:
    """1, 0 or -1: is the mean of i above, equal to or below that of j?"""
    gap = float((values[i] - values[j]).mean())
    return 0 if abs(gap) <= ROUNDING * float(np.abs(values[[i, j]]).max()) else int(np.sign(gap))
