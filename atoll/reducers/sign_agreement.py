"""Defences that count signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from atoll import tree
from atoll.core import Stack
from atoll.reducers.bounded import shrunk
from atoll.reducers.defence import Defence, Weighing
from atoll.reducers.gram import matrices
from atoll.reducers.rows import Rows
from atoll.tree import Tree


@dataclass(frozen=True)
class RobustLearningRate(Defence):
    """RLR: the mean, turned round in every coordinate in which too few agree on the sign (Ozdayi et al., AAAI 2021).

    mean of x where |sum of sign(x_i)| >= threshold n, - mean elsewhere. Defending against backdoors in federated
    learning with robust learning rate. The paper gives the threshold as a number of clients.
    """

    assumes: ClassVar[str] = "lengths are bounded before it (norm_clipping); one unbounded liar breaks it"

    threshold: Annotated[float, Field(gt=0, le=1)] = 0.4

    def aggregate(self, stack: Stack, state: Tree, key: Tensor) -> tuple[Tree, Tree, Tree]:
        least = self.threshold * len(stack)
        value = tree.map(lambda x: _turned(x, least), stack.updates.value)
        turned = [torch.sign(x).sum(0).abs() < least for x in matrices(stack.updates.value)]
        size = sum(x.numel() for x in turned)
        share = torch.stack([x.sum() for x in turned]).sum() / size if size else torch.zeros(())
        return value, state, {"turned": share}


def _turned(x: Tensor, least: float) -> Tensor:
    agreed = torch.sign(x).sum(0).abs() >= least
    mean = (x if x.is_floating_point() else x.float()).mean(0)
    return torch.where(agreed, mean, -mean)


@dataclass(frozen=True)
class SignGuard(Weighing):
    """Who is not too short, not too long and in the largest cluster of sign counts, clipped to the median length.

    Byzantine-robust federated learning through collaborative malicious gradient filtering (Xu et al., ICDCS 2022).
    Lengths from `shortest` to `longest` times the median; shares of positive, negative and zero entries by mean shift.
    """

    assumes: ClassVar[str] = "fewer than half of the clients lie, and their lengths or signs show it; n/2 break it"

    shortest: Annotated[float, Field(ge=0, lt=1)] = 0.1
    longest: Annotated[float, Field(gt=1)] = 3.0

    def weigh(self, rows: Rows, key: Tensor) -> tuple[Tensor, Tree]:
        middle = rows.norms.quantile(0.5)
        fits = (rows.norms >= self.shortest * middle) & (rows.norms <= self.longest * middle)
        counts = sign_shares(rows)
        chosen = fits & largest_cluster(counts)
        chosen = chosen if bool(chosen.any()) else fits if bool(fits.any()) else torch.ones_like(fits)
        weights = chosen * shrunk(rows.norms, float(middle)) / chosen.sum()
        return weights, {"chosen": rows.ids[chosen], "scores": rows.norms.float(), "signs": counts.float()}

    def tolerates(self, clients: int) -> int:
        return (clients - 1) // 2


def sign_shares(rows: Rows) -> Tensor:
    """(C, 3): the share of positive, negative and zero numbers of each."""
    counts = torch.zeros(len(rows), 3, dtype=torch.float64)
    size = 0
    for x in matrices(rows.value):
        up, down = (x > 0).sum(1).cpu(), (x < 0).sum(1).cpu()
        counts += torch.stack([up, down, x.shape[1] - up - down], 1)
        size += x.shape[1]
    return counts[rows.order] / max(1, size)


def largest_cluster(points: Tensor, steps: int = 100) -> Tensor:
    """Mean shift with a flat kernel as wide as half of the points are apart: (C,) is it in the largest cluster?

    Every point moves to the mean of those within the width, until none does. Of clusters of one size, that of the
    lowest place.
    """
    apart = torch.cdist(points, points)
    width = float(apart.sort(1).values[:, (len(points) - 1) // 2].mean()) + 1e-12
    modes = points
    for _ in range(steps):
        near = (torch.cdist(modes, points) <= width).double()
        moved = near @ points / near.sum(1, keepdim=True)
        if torch.equal(moved, modes):
            break
        modes = moved
    together = torch.cdist(modes, modes) <= width
    return together[int(together.sum(1).argmax())]
