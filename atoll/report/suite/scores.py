"""What a cell reached over its seeds, in the scale in which it is shown; and who may be called the best of a row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atoll.records import Cell, Results, When
from atoll.stats import t_interval


@dataclass(frozen=True)
class CellScore:
    """A mean over n seeds; `std` with n - 1 below the line, `half` of the 95 % t interval. One seed: neither."""

    mean: float
    std: float | None
    half: float | None
    n: int

    @property
    def diverged(self) -> bool:
        """Whether a seed's value is not finite: then the mean is not either."""
        return not math.isfinite(self.mean)

    def meets(self, other: CellScore) -> bool:
        """Whether the two intervals overlap.

        >>> one = CellScore(88.0, 0.1, 0.2, 3)
        >>> one.meets(CellScore(88.3, 0.1, 0.2, 3)), one.meets(CellScore(89, 0, 0, 3))
        (True, False)
        """
        return abs(self.mean - other.mean) <= (self.half or 0.0) + (other.half or 0.0)


def score(values: Sequence[float]) -> CellScore | None:
    """The score of one value per seed; None without seeds.

    >>> score([1.0, 2.0, 3.0])
    CellScore(mean=2.0, std=1.0, half=2.4841377117503303, n=3)
    """
    if not len(values):
        return None
    found = t_interval(values)
    return CellScore(found.mean, found.std, found.half, found.n)


def by_seed(cell: Cell, results: Results, when: When) -> dict[int, float]:
    """The shown value of every seed."""
    return {seed: value * results.scale for seed, value in cell.by_seed(when, results.higher).items()}


def of_cell(cell: Cell, results: Results, when: When) -> CellScore | None:
    """The shown score of a cell."""
    return score(list(by_seed(cell, results, when).values()))


def competes(cell: Cell) -> bool:
    """Whether a cell may win: a single seed is no result, and a mistake repeated on purpose is no method."""
    return cell.quirk is None and len(cell.runs) > 1


def best(scores: Mapping[str, CellScore], higher: bool) -> list[str]:
    """The methods with the best mean: one, or those with exactly the same.

    >>> best({"a": CellScore(1, 0, 0, 3), "b": CellScore(2, 0, 0, 3)}, higher=True)
    ['b']
    """
    finite = {name: one.mean for name, one in scores.items() if not one.diverged}
    if not finite:
        return []
    top = (max if higher else min)(finite.values())
    return [name for name, mean in finite.items() if mean == top]
