"""Values of several methods, paired by seed: the same seed gave them the same clients, model and cohorts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from atoll.errors import DataError
from atoll.stats.validate import Floats

BySeed = Mapping[int, float]


@dataclass(frozen=True)
class Aligned:
    """Methods at the seeds that all of them have, sorted; and the seeds that were left out, each with its reason."""

    seeds: tuple[int, ...]
    values: Mapping[str, Floats]  # by method, in the order of `seeds`
    left_out: Mapping[int, str]

    def difference(self, first: str, second: str) -> Floats:
        """First minus second, seed by seed."""
        differences: Floats = self.values[first] - self.values[second]
        return differences

    @property
    def note(self) -> str:
        """What was left out, in words; empty if nothing was."""
        reasons: dict[str, list[int]] = {}
        for seed, why in self.left_out.items():
            reasons.setdefault(why, []).append(seed)
        parts = [f"{_seeds(seeds)} ({why})" for why, seeds in reasons.items()]
        return f"left out: {', '.join(parts)}" if parts else ""


def align(methods: Mapping[str, BySeed]) -> Aligned:
    """The seeds that every method has, with a finite value. To leave out a seed that diverged flatters: show the note.

    >>> aligned = align({"fedavg": {0: 0.7, 1: 0.8, 2: 0.9}, "scaffold": {1: 0.6, 2: float("nan"), 3: 0.9}})
    >>> aligned.seeds, aligned.difference("fedavg", "scaffold").round(3).tolist()
    ((1,), [0.2])
    >>> aligned.note
    'left out: seed 0 (not in scaffold), seed 2 (not finite in scaffold), seed 3 (not in fedavg)'
    """
    if len(methods) < 2:
        raise DataError(f"pairs: need two methods or more to pair (got {', '.join(methods) or 'none'}).")
    everywhere = sorted({seed for values in methods.values() for seed in values})
    left_out = {seed: why for seed in everywhere if (why := _missing(seed, methods))}
    seeds = tuple(seed for seed in everywhere if seed not in left_out)
    if not seeds:
        have = "; ".join(f"{name} has {_seeds(sorted(values))}" for name, values in methods.items())
        raise DataError(f"pairs: no seed is common and finite ({have}). Run both with the same seeds.")
    values = {name: np.array([values[seed] for seed in seeds], np.float64) for name, values in methods.items()}
    return Aligned(seeds, values, left_out)


def pair(a: BySeed, b: BySeed, names: tuple[str, str] = ("A", "B")) -> tuple[Floats, Floats, Aligned]:
    """Two methods at their common seeds, ready for a paired test.

    >>> a, b, aligned = pair({0: 1.0, 1: 2.0}, {1: 5.0, 0: 3.0})
    >>> a.tolist(), b.tolist(), aligned.note
    ([1.0, 2.0], [3.0, 5.0], '')
    """
    if names[0] == names[1]:
        raise DataError(f"pairs: both are called {names[0]!r}. Give them two names.")
    aligned = align({names[0]: a, names[1]: b})
    return aligned.values[names[0]], aligned.values[names[1]], aligned


def _missing(seed: int, methods: Mapping[str, BySeed]) -> str:
    absent = [name for name, values in methods.items() if seed not in values]
    broken = [name for name, values in methods.items() if seed in values and not math.isfinite(values[seed])]
    reasons = [
        f"{word} {' and '.join(names)}" for word, names in (("not in", absent), ("not finite in", broken)) if names
    ]
    return ", ".join(reasons)


def _seeds(seeds: list[int]) -> str:
    if not seeds:
        return "no seeds"
    return ("seed " if len(seeds) == 1 else "seeds ") + ", ".join(map(str, seeds))
