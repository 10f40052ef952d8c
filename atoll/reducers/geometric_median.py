"""The point with the smallest sum of distances to all updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atoll.core import Count
from atoll.reducers.defence import Above0, Weighing
from atoll.reducers.rows import Rows
from atoll.tree import Tree


def weiszfeld(distances: Tensor, steps: int, smoothing: float) -> tuple[Tensor, Tensor]:
    """Weights of the updates in the point z, and the distance of each to it.

    |x_i - z|^2 = (D w)_i - w'Dw / 2 for z = sum of w_i x_i with weights of sum 1 and D of squared distances: no step
    looks at the updates again.
    """
    weights = torch.full_like(distances[0], 1.0 / len(distances))
    away = _away(distances, weights)
    for _ in range(steps):
        weights = 1.0 / away.clamp(min=smoothing)
        weights = weights / weights.sum()
        away = _away(distances, weights)
    return weights, away


def _away(distances: Tensor, weights: Tensor) -> Tensor:
    near = distances @ weights
    return (near - weights @ near / 2).clamp(min=0).sqrt()


@dataclass(frozen=True)
class GeometricMedian(Weighing):
    """RFA: the geometric median by `steps` of the smoothed Weiszfeld algorithm, from the mean (Pillutla et al., 2022).

    w_i = 1 / max(smoothing, |x_i - z|), z = sum of w_i x_i / sum of w_i. Robust aggregation for federated learning,
    IEEE TSP 2022. A step costs nothing beside the distances; after a few, liars that are very far still show.
    """

    assumes: ClassVar[str] = "fewer than half of the clients lie, and steps enough to get there; n/2 liars break it"

    steps: Count = 100
    smoothing: Above0 = 1e-6

    def weigh(self, rows: Rows, key: Tensor) -> tuple[Tensor, Tree]:
        weights, away = weiszfeld(rows.distances, self.steps, self.smoothing)
        return weights, {"scores": away.float()}

    def tolerates(self, clients: int) -> int:
        return (clients - 1) // 2
