"""Min-max and min-sum: as far out as honest updates are from each other, and no farther."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from atoll.core import AdversaryView, Attack, Knowledge, Stealth
from atoll.tree import Tree

Direction: TypeAlias = Literal["unit", "sign", "deviation"]
_HALVINGS = 40  # of a step: to a relative 1e-12


@dataclass(frozen=True)
class MinMax(Attack):
    """u = mean + gamma p, no farther from any benign update than two of them are apart. Knows everybody's updates.

    p is -mean / |mean| ("unit"), -sign(mean) ("sign") or -deviation ("deviation"); gamma is the largest that keeps
    max_i |u - u_i| <= max_ij |u_i - u_j|, found by halving steps (Shejwalkar and Houmansadr, 2021, algorithm 1).
    """

    stealth: ClassVar[Stealth] = "largest distance"

    direction: Direction = "deviation"
    sees: Literal["colluders", "everybody"] = "everybody"

    @property
    def knows(self) -> Knowledge:
        return self.sees

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        return _farthest(seen, self.direction, lambda distances: distances.max(-1).values), state


@dataclass(frozen=True)
class MinSum(Attack):
    """u = mean + gamma p, its squared distances adding up to no more than a benign update's. Knows everybody's updates.

    As min_max, with sum_i |u - u_i|^2 <= max_i sum_j |u_i - u_j|^2 (Shejwalkar and Houmansadr, 2021).
    """

    stealth: ClassVar[Stealth] = "sum of distances"

    direction: Direction = "deviation"
    sees: Literal["colluders", "everybody"] = "everybody"

    @property
    def knows(self) -> Knowledge:
        return self.sees

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        return _farthest(seen, self.direction, lambda distances: distances.sum(-1)), state


def _farthest(seen: AdversaryView, direction: Direction, judged: Callable[[Tensor], Tensor]) -> Tensor:
    """|mean + gamma p - u_i|^2 = a_i + 2 gamma b_i + gamma^2 c: once these are known the search is of numbers only."""
    benign = seen.benign.double()
    mean = benign.mean(0)
    p = _pointing(benign, mean, direction)
    a, b, c = ((benign - mean) ** 2).sum(1), (mean - benign) @ p, p @ p
    limit = judged(squared_distances(benign)).max()
    reach = 2 * (limit.sqrt() + a.max().sqrt()) / c.sqrt().clamp(min=1e-30)  # beyond it nothing is allowed
    gamma = halving(lambda g: bool(judged(a + 2 * g * b + g * g * c) <= limit), float(reach))
    return seen.alike((mean + gamma * p).to(seen.own.dtype))


def halving(allowed: Callable[[float], bool], first: float) -> float:
    """The paper's search: a step forward from what is allowed, a step back from what is not, each half the last.

    >>> round(halving(lambda g: g <= 0.3, 10.0), 6)
    0.3
    """
    best, tried, step = 0.0, first, first
    for _ in range(_HALVINGS):
        step /= 2
        if allowed(tried):
            best, tried = tried, tried + step
        else:
            tried -= step
    return best


def squared_distances(rows: Tensor) -> Tensor:
    """(H, H)."""
    distances: Tensor = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    return distances**2


def _pointing(benign: Tensor, mean: Tensor, direction: Direction) -> Tensor:
    if direction == "unit":
        unit: Tensor = mean / torch.linalg.vector_norm(mean).clamp(min=1e-30)
        return -unit
    return -(mean.sign() if direction == "sign" else benign.std(0, correction=0))
