"""Krum and those after it: an update is scored by its distances to its nearest neighbours, not to all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Count, Stack
from atoll.reducers.coordinates import mean_around_median, reduced
from atoll.reducers.defence import Byzantine, Defence, Sized, Weighing
from atoll.reducers.rows import Rows
from atoll.tree import Tree

_ROUNDING = 1e-6


def krum_scores(distances: Tensor, byzantine: int) -> Tensor:
    """The sum of the n - f - 2 smallest squared distances of each to others: at least one, where there is another."""
    n = len(distances)
    near = max(1, min(n - 1, n - byzantine - 2))
    return distances.sort(1).values[:, 1 : near + 1].sum(1)


def first_of_least(scores: Tensor) -> int:
    """The first of those that are smallest but for rounding: mixed updates are often equally good."""
    return int((scores <= scores.min() * (1 + _ROUNDING)).to(torch.uint8).argmax())


class KrumSized(Sized):
    """n > 2 f + 2: then a majority of an honest update's neighbours is honest."""

    needs: ClassVar[str] = "Krum needs 2 byzantine + 2 < n"

    def most(self, clients: int) -> int:
        return (clients - 3) // 2


@dataclass(frozen=True)
class Krum(KrumSized, Weighing):
    """Of n updates the one whose n - f - 2 nearest others are nearest, by squared distance (Blanchard et al., 2017).

    Machine learning with adversaries, NeurIPS 2017. f = `byzantine`; of equals the lowest id.
    """

    assumes: ClassVar[str] = "at most `byzantine` of n clients lie, 2 byzantine + 2 < n; n/2 that agree break it"

    byzantine: Byzantine = 1

    def weigh(self, rows: Rows, key: Tensor) -> tuple[Tensor, Tree]:
        scores = krum_scores(rows.distances, self.allowed(len(rows)))
        weights = torch.zeros_like(scores)
        weights[first_of_least(scores)] = 1.0
        return weights, {"scores": scores.float(), "chosen": rows.ids[weights > 0]}

    def breaks_at(self, clients: int) -> int:
        return (clients + 1) // 2


@dataclass(frozen=True)
class MultiKrum(KrumSized, Weighing):
    """The mean of the `keep` updates with the best scores of Krum (Blanchard et al., 2017); all but f by default."""

    assumes: ClassVar[str] = "at most `byzantine` of n clients lie, 2 byzantine + 2 < n; n - keep + 1 liars break it"

    byzantine: Byzantine = 1
    keep: Count | None = None

    def weigh(self, rows: Rows, key: Tensor) -> tuple[Tensor, Tree]:
        scores = krum_scores(rows.distances, self.allowed(len(rows)))
        chosen = scores.argsort(stable=True)[: self.kept(len(rows))].sort().values
        weights = torch.zeros_like(scores)
        weights[chosen] = 1.0 / len(chosen)
        return weights, {"scores": scores.float(), "chosen": rows.ids[chosen]}

    def kept(self, clients: int) -> int:
        """How many are averaged."""
        return max(1, min(self.keep or clients, clients - self.allowed(clients)))

    def breaks_at(self, clients: int) -> int:
        return min((clients + 1) // 2, clients - self.kept(clients) + 1)

    def is_plain_mean(self, clients: int) -> bool:
        return self.kept(clients) == clients


@dataclass(frozen=True)
class Bulyan(Sized, Defence):
    """Krum chooses n - 2f, one after the other; of every coordinate the n - 4f values next to its median are averaged.

    The hidden vulnerability of distributed learning in Byzantium (El Mhamdi et al., 2018). f = `byzantine`.
    """

    assumes: ClassVar[str] = "at most `byzantine` of n clients lie, 4 byzantine + 3 <= n; n/2 that agree break it"
    needs: ClassVar[str] = "Bulyan needs 4 byzantine + 3 <= n"

    byzantine: Byzantine = 1

    def most(self, clients: int) -> int:
        return (clients - 3) // 4

    def breaks_at(self, clients: int) -> int:
        return clients // 2 + 1

    def aggregate(self, stack: Stack, state: Tree, key: Tensor) -> tuple[Tree, Tree, Tree]:
        rows, f = Rows.of(stack), self.allowed(len(stack))
        chosen = _one_after_the_other(rows.distances, f, len(rows) - 2 * f)
        places = rows.order[chosen].sort().values
        kept = tree.map(lambda x: x[places.to(x.device)], rows.value)
        value = reduced(kept, lambda x: mean_around_median(x, max(1, len(x) - 2 * f)))
        return value, state, {"clients": rows.ids, "chosen": rows.ids[chosen].sort().values}


def _one_after_the_other(distances: Tensor, byzantine: int, count: int) -> Tensor:
    """Krum's choice, then its choice of the others, and so on."""
    left, chosen = torch.arange(len(distances)), []
    for _ in range(count):
        best = first_of_least(krum_scores(distances[left][:, left], byzantine))
        chosen.append(int(left[best]))
        left = torch.cat([left[:best], left[best + 1 :]])
    return torch.tensor(chosen)
