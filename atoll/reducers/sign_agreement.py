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
from atoll.reducers.coordinates import by_blocks, reduced
from atoll.reducers.defence import Defence, Weighing
from atoll.reducers.gram import block_width, matrices
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
        least, turned = self.threshold * len(stack), []

        def judged(x: Tensor) -> Tensor:
            mean, agreed = x.mean(0), torch.sign(x).sum(0).abs() >= least
            turned.append((~agreed).sum())
            return torch.where(agreed, mean, -mean)

        value = reduced(stack.updates.value, lambda x: by_blocks(x, judged))
        size = max(1, tree.count(value))
        return value, state, {"turned": torch.stack(turned).sum() / size if turned else torch.zeros(())}


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
    balance, there, size = torch.zeros(len(rows)), torch.zeros(len(rows)), 0
    for x in matrices(rows.value):
        width = block_width(x)
        for at in range(0, x.shape[1], width):
            signs = torch.sign(x[:, at : at + width]).float()
            balance += signs.sum(1).cpu()
            there += signs.abs_().sum(1).cpu()
        size += x.shape[1]
    shares = torch.stack([(there + balance) / 2, (there - balance) / 2, size - there], 1).double()
    return shares[rows.order] / max(1, size)


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
