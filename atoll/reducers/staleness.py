"""Updates that were made from an older model count less, before any reducer sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Info, Reducer, Spec, Total, Update
from atoll.reducers.around import ReducerAround
from atoll.tree import Tree

StalenessShape = Literal["constant", "polynomial", "hinge"]


@dataclass(frozen=True)
class StalenessDiscount:
    """alpha s(t) for an update whose model is t steps old (Xie et al., 2019).

    constant: s = 1;  polynomial: s = (1 + t)^-a, FedBuff: a = 1/2;  hinge: s = 1 up to b, then 1 / (1 + a (t - b))

    >>> StalenessDiscount("polynomial", 0.5)(torch.tensor([0.0, 3.0]))
    tensor([1.0000, 0.5000])
    """

    shape: StalenessShape = "constant"
    a: float = 0.5
    b: float = 4.0
    alpha: float = 1.0

    @property
    def changes_nothing(self) -> bool:
        return self.alpha == 1.0 and (self.shape == "constant" or self.a == 0.0)

    def __call__(self, staleness: Tensor) -> Tensor:
        if self.shape == "constant":
            return torch.full_like(staleness, self.alpha)
        if self.shape == "polynomial":
            return self.alpha * (1 + staleness) ** -self.a
        return self.alpha / (1 + self.a * (staleness - self.b).clamp(min=0))


@dataclass(frozen=True, eq=False)
class Discounted(ReducerAround[Any]):
    """Another reducer, given s(t) u in place of an update u that is t steps old. Weights stay what they are.

    With the mean this is sum of s_k w_k u_k over sum of w_k. FedBuff's own (Nguyen et al., 2022) counts clients alike,
    sum of s_k u_k over their number: that is w_k = 1, the transform equal_weights. No update grows, so a bound that a
    transform promises still holds.
    """

    inner: Reducer[Any]
    discount: StalenessDiscount

    def spec(self) -> Spec:
        return self.inner.spec()

    def init(self, like: Tree) -> Tree:
        return self.inner.init(like)

    def zero(self, like: Tree) -> Any:
        return self.inner.zero(like)

    def lift(self, updates: Update, info: Info, key: Tensor) -> Any:
        return self.lift_scaled(updates, {}, info, key)

    def lift_scaled(self, updates: Update, factors: Tree, info: Info, key: Tensor) -> Any:
        by = self.discount(info.staleness.to(updates.weight.device))
        if not factors:
            return self.inner.lift_scaled(updates, tree.map(lambda _: by, updates.value), info, key)
        shared = {id(x): x * by for x in tree.leaves(factors)}  # many tensors share one factor
        return self.inner.lift_scaled(updates, tree.map(lambda x: shared[id(x)], factors), info, key)

    def merge(self, a: Any, b: Any) -> Any:
        return self.inner.merge(a, b)

    def finish(self, partial: Any, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        return self.inner.finish(partial, state, key)
