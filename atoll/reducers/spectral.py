"""Defences that look for the direction in which updates differ most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from atoll import rng, tree
from atoll.core import Count
from atoll.reducers.defence import Byzantine, Sized, Weighing
from atoll.reducers.rows import Rows
from atoll.tree import Tree


@dataclass(frozen=True)
class CovarianceFilter(Sized, Weighing):
    """CAF: weights of those who lie far out in the direction of largest variance fall, until n - 2f are left in all.

    c_i (1 - t_i / max t) with t_i = <v, x_i - mean>^2 and v the first eigenvector of the weighted covariance; the mean
    with the smallest first eigenvalue on the way is the aggregate (Allouah et al., ICML 2025). f = `byzantine`.
    """

    assumes: ClassVar[str] = "at most `byzantine` of n clients lie, 2 byzantine < n; broken from n/2 at the latest"
    needs: ClassVar[str] = "CAF needs 2 byzantine < n"

    byzantine: Byzantine = 1

    def weigh(self, rows: Rows, key: Tensor) -> tuple[Tensor, Tree]:
        n, f = len(rows), self.allowed(len(rows))
        weights = torch.ones(n, dtype=torch.float64)
        best, least = weights / n, float("inf")
        while float(weights.sum()) > n - 2 * f:
            share = weights / weights.sum()
            variance, along = first_component(rows.distances, share)
            if variance < least:
                best, least = share, variance
            furthest = float(along[weights > 0].max())  # of those who count at all, or others hide behind who does not
            if variance <= 0 or furthest <= 0:
                break
            weights = weights * (1 - along / furthest).clamp(min=0)
        return best, {"variance": torch.tensor(least if f else 0.0)}

    def breaks_at(self, clients: int) -> int:
        return (clients + 1) // 2


def first_component(distances: Tensor, share: Tensor) -> tuple[float, Tensor]:
    """The largest variance of weighted points in any direction, and each point's squared distance along it."""
    near = distances @ share
    inner = (near[:, None] + near[None, :] - distances - share @ near) / 2  # products of differences to the mean
    root = share.sqrt()
    values, vectors = torch.linalg.eigh(root[:, None] * inner * root[None, :])
    variance = max(0.0, float(values[-1]))
    along = (inner @ (root * vectors[:, -1])) ** 2
    return variance, along / variance if variance > 0 else torch.zeros_like(along)


@dataclass(frozen=True)
class DivideAndConquer(Sized, Weighing):
    """DnC: `filtering` f updates that lie furthest along the first singular vector go; whoever is kept in all is in.

    `iterations` times, of `columns` random numbers of every update (Shejwalkar and Houmansadr, NDSS 2021).
    """

    assumes: ClassVar[str] = "liars stand out, none hides at the mean that others moved: with one that does, 2 break it"
    needs: ClassVar[str] = "DnC needs 2 byzantine < n"

    byzantine: Byzantine = 1
    iterations: Count = 3
    columns: Count = 10_000
    filtering: Annotated[float, Field(gt=0)] = 1.0

    def weigh(self, rows: Rows, key: Tensor) -> tuple[Tensor, Tree]:
        n, size = len(rows), tree.count(rows.value) // len(rows)
        kept = torch.zeros(n, dtype=torch.int64)
        scores = torch.zeros(n, dtype=torch.float64)
        for i in range(self.iterations if size else 0):
            at = rng.distinct(rng.fold(rng.fold_name(key.cpu(), "dnc"), i), size, min(size, self.columns))
            part = rows.columns(at.sort().values)
            scores = _outliers(part - part.mean(0))
            kept[scores.argsort(stable=True)[: n - self.filtered(n)]] += 1
        chosen = kept == kept.max()  # kept in all; where nobody was, most often
        return chosen / chosen.sum(), {"scores": scores.float(), "chosen": rows.ids[chosen]}

    def filtered(self, clients: int) -> int:
        """How many go in an iteration."""
        return min(clients - 1, int(self.filtering * self.allowed(clients)))

    def tolerates(self, clients: int) -> int:
        return min(1, self.filtered(clients))  # a second one may stand at the mean that the first has moved


def _outliers(centred: Tensor) -> Tensor:
    """<x_i - mean, v>^2 with v the first right singular vector: from the left ones, which are few."""
    values, vectors = torch.linalg.eigh(centred @ centred.T)
    along: Tensor = values[-1].clamp(min=0) * vectors[:, -1] ** 2
    return along
