"""The updates that lie closest together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atoll.reducers.defence import Byzantine, Sized, Weighing
from atoll.reducers.rows import Rows
from atoll.tree import Tree


@dataclass(frozen=True)
class MinimumDiameter(Sized, Weighing):
    """MDA: the mean of the n - f updates of the smallest diameter (Rousseeuw, 1985; El Mhamdi et al., 2021).

    The largest distance between any two of them is as small as it can be; of equals the set of the lowest ids. Exact:
    whoever is left out must cover all pairs that are too far apart, which is searched with f = `byzantine` to spare.
    """

    assumes: ClassVar[str] = "at most `byzantine` of n clients lie, 2 byzantine < n; one more breaks it"
    needs: ClassVar[str] = "MDA needs 2 byzantine < n"

    byzantine: Byzantine = 1

    def weigh(self, rows: Rows, key: Tensor) -> tuple[Tensor, Tree]:
        chosen = closest_together(rows.distances, len(rows) - self.allowed(len(rows)))
        weights = torch.zeros(len(rows), dtype=torch.float64)
        weights[chosen] = 1.0 / len(chosen)
        diameter = rows.distances[chosen][:, chosen].max().sqrt()
        return weights, {"chosen": rows.ids[chosen], "diameter": diameter.float()}


def closest_together(distances: Tensor, count: int) -> Tensor:
    """The first `count` places, in order, whose largest distance is the smallest that `count` places can have."""
    levels, n = torch.unique(distances), len(distances)
    low, high = 0, len(levels) - 1
    while low < high:
        level = (low + high) // 2
        enough = _can_cover(_far(distances, float(levels[level])), (1 << n) - 1, n - count)
        low, high = (low, level) if enough else (level + 1, high)
    return torch.tensor(_first_set(_far(distances, float(levels[low])), n, n - count)[:count])


def _far(distances: Tensor, level: float) -> list[int]:
    """Of each place those that are further away, as bits."""
    return [sum(1 << j for j, far in enumerate(row) if far) for row in (distances > level).tolist()]


def _first_set(far: list[int], n: int, budget: int) -> list[int]:
    """The lowest places of which no two are far apart, if at most `budget` are left out."""
    alive = (1 << n) - 1
    for i in range(n):
        if not alive >> i & 1:
            continue
        lost = far[i] & alive
        spare = budget - lost.bit_count()
        if spare >= 0 and _can_cover(far, alive & ~lost, spare):
            alive, budget = alive & ~lost, spare
        else:
            alive, budget = alive & ~(1 << i), budget - 1
    return [i for i in range(n) if alive >> i & 1]


def _can_cover(far: list[int], alive: int, budget: int) -> bool:
    """Can so many be left out that no two of the others are far apart? Either one is, or all that are far from it."""
    degrees = {i: (far[i] & alive).bit_count() for i in range(len(far)) if alive >> i & 1}
    pairs = sum(degrees.values()) // 2
    worst = max(degrees, key=lambda i: degrees[i], default=0)
    most = degrees.get(worst, 0)
    if pairs > budget * most:
        return False
    if most <= 1:
        return True
    if _can_cover(far, alive & ~(1 << worst), budget - 1):
        return True
    return most <= budget and _can_cover(far, alive & ~far[worst], budget - most)
