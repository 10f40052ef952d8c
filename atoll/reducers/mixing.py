"""Reducers around another, which is given something that is easier to defend: mixed, clipped or averaged updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from atoll import rng
from atoll.core import Count, Stack
from atoll.reducers.bounded import shrunk
from atoll.reducers.defence import Around, Byzantine, Sized, check_inner, restacked
from atoll.reducers.rows import Rows
from atoll.tree import Tree


@dataclass(frozen=True)
class NearestNeighbourMixing(Sized, Around):
    """NNM: every update becomes the mean of its n - f nearest, itself among them, and `inner` aggregates these.

    Fixing by mixing (Allouah et al., AISTATS 2023): what heterogeneous data cost is then as little as it can be.
    """

    assumes: ClassVar[str] = "at most `byzantine` of n clients lie, 2 byzantine < n; inner holds; one more breaks it"
    needs: ClassVar[str] = "NNM needs 2 byzantine < n"

    byzantine: Byzantine = 1

    def changed(self, stack: Stack, key: Tensor) -> tuple[Stack, Tree, Tree]:
        rows = Rows.of(stack)
        count = len(rows) - self.allowed(len(rows))
        mixing = torch.zeros(len(rows), len(rows), dtype=torch.float64)
        mixing.scatter_(1, rows.distances.argsort(dim=1, stable=True)[:, :count], 1.0 / count)
        return restacked(stack, rows.mixed(mixing), rows.order), {}, {}

    def tolerates(self, clients: int) -> int:
        return min(self.allowed(clients), self.inner.tolerates(clients))

    def is_plain_mean(self, clients: int) -> bool:
        return self.allowed(clients) == 0

    def check_cohort(self, clients: int) -> None:
        Sized.check_cohort(self, clients)
        check_inner(self.inner, clients)


@dataclass(frozen=True)
class AdaptiveClipping(Sized, Around):
    """ARC: the k = int(2 f / n (n - f)) longest updates are clipped to the length of the next one, then `inner`.

    Adaptive gradient clipping for robust federated learning (Allouah et al., ICLR 2025). f = `byzantine`.
    """

    assumes: ClassVar[str] = "at most `byzantine` of n clients lie, 2 byzantine < n, and inner holds"
    needs: ClassVar[str] = "ARC needs 2 byzantine < n"

    byzantine: Byzantine = 1

    def changed(self, stack: Stack, key: Tensor) -> tuple[Stack, Tree, Tree]:
        rows = Rows.of(stack)
        bound = rows.norms.sort().values[len(rows) - self.clipped(len(rows)) - 1]
        factors = shrunk(rows.norms, float(bound))
        said = {"clip": {"clients": rows.ids, "norms": rows.norms.float(), "bound": bound.float()}}
        return restacked(stack, stack.updates.value), rows.factors(factors), said

    def clipped(self, clients: int) -> int:
        """How many are clipped."""
        f = self.allowed(clients)
        return int(2 * f / clients * (clients - f))

    def tolerates(self, clients: int) -> int:
        return max(self.allowed(clients), self.inner.tolerates(clients))

    def breaks_at(self, clients: int) -> int | None:
        inner = self.inner.breaks_at(clients)
        return None if inner is None else max(inner, self.clipped(clients) + 1)

    def check_cohort(self, clients: int) -> None:
        Sized.check_cohort(self, clients)
        check_inner(self.inner, clients)


@dataclass(frozen=True)
class Bucketing(Around):
    """Updates in random order, the means of `size` at a time, then `inner` (Karimireddy et al., ICLR 2022).

    Byzantine-robust learning on heterogeneous datasets via bucketing. One liar spoils one bucket.
    """

    assumes: ClassVar[str] = "inner holds for n / size buckets of which one is wrong for every liar"

    size: Count = 2

    def changed(self, stack: Stack, key: Tensor) -> tuple[Stack, Tree, Tree]:
        rows, n = Rows.of(stack), len(stack)
        order = rng.permutation(rng.fold_name(key.cpu(), "buckets"), n)
        bucket = torch.empty_like(order)
        bucket[order] = torch.arange(n) // self.size
        mixing = torch.zeros(self.buckets(n), n, dtype=torch.float64)
        mixing[bucket, torch.arange(n)] = 1.0
        first = mixing.argmax(1)  # the lowest id of each stands for it
        value = rows.mixed(mixing / mixing.sum(1, keepdim=True))
        said = {"buckets": {"clients": rows.ids, "bucket": bucket}}
        return restacked(stack, value, rows.order[first]), {}, said

    def buckets(self, clients: int) -> int:
        return -(-clients // self.size)

    def tolerates(self, clients: int) -> int:
        return self.inner.tolerates(self.buckets(clients))

    def breaks_at(self, clients: int) -> int | None:
        return self.inner.breaks_at(self.buckets(clients))

    def is_plain_mean(self, clients: int) -> bool:
        return self.buckets(clients) == 1 or self.inner.is_plain_mean(self.buckets(clients))

    def check_cohort(self, clients: int) -> None:
        check_inner(self.inner, self.buckets(clients))
