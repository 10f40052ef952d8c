"""Defences that bound how far one client can move the aggregate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Count, Stack
from atoll.reducers.defence import Above0, Defence, Weighing
from atoll.reducers.rows import Rows
from atoll.tree import Tree


@dataclass(frozen=True)
class NormClipping(Weighing):
    """Norm-difference clipping: the mean of the updates, none longer than `max_norm` (Sun et al., 2019).

    mean of x_i min(1, max_norm / |x_i|). Can you really backdoor federated learning?, arXiv:1911.07963. On the server;
    `clip_l2` is the same at the clients, which liars do not run.
    """

    assumes: ClassVar[str] = "each of n clients moves the total by max_norm / n at most, however many lie"

    max_norm: Above0

    def weigh(self, rows: Rows, key: Tensor) -> tuple[Tensor, Tree]:
        factors = shrunk(rows.norms, self.max_norm)
        return factors / len(rows), {"scores": rows.norms.float()}

    def breaks_at(self, clients: int) -> None:
        return None


@dataclass(frozen=True)
class CentredClipping(Defence):
    """v + mean of (x_i - v) min(1, radius / |x_i - v|), `steps` times, from the last round's aggregate v.

    Learning from history for Byzantine robust optimization (Karimireddy et al., 2021). The first round starts at 0.
    """

    assumes: ClassVar[str] = "each of n clients moves the total by radius steps / n at most, however many lie"

    radius: Above0
    steps: Count = 1

    def init(self, like: Tree) -> Tree:
        return {"centre": tree.map(lambda x: torch.zeros_like(x if x.is_floating_point() else x.float()), like)}

    def aggregate(self, stack: Stack, state: Tree, key: Tensor) -> tuple[Tree, Tree, Tree]:
        rows, centre = Rows.of(stack), state["centre"]
        squares, near = rows.distances_from(centre)
        away = squares.sqrt()
        share = _moved(torch.zeros(len(stack), dtype=torch.float64), away, self.radius)
        products = rows.products_around(centre, near) if self.steps > 1 else None
        for _ in range(self.steps - 1):
            assert products is not None
            beside = products @ share
            away = (products.diagonal() - 2 * beside + share @ beside).clamp(min=0).sqrt()
            share = _moved(share, away, self.radius)
        value = tree.add_scaled(rows.combined(share), centre, 1.0 - float(share.sum()))
        said = {"clients": rows.ids, "weights": share.float(), "scores": away.float()}
        return value, {"centre": value}, said

    def breaks_at(self, clients: int) -> None:
        return None


def shrunk(lengths: Tensor, most: float) -> Tensor:
    """What brings each length down to `most`; 1 where it is there."""
    return (most / lengths.clamp(min=1e-300)).clamp(max=1.0)


def _moved(share: Tensor, away: Tensor, radius: float) -> Tensor:
    """How much of every difference to the centre is in v, after one more step."""
    factors = shrunk(away, radius)
    return share * (1 - factors.mean()) + factors / len(away)
