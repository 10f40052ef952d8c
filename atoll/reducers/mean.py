"""The weighted mean: a sum, so parts merge in any order."""

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Info, Reducer, Spec, Total, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class Mean(Reducer[Total]):
    """The weighted mean of the updates: sum of w_k u_k over sum of w_k."""

    def spec(self) -> Spec:
        return Spec(additive=True)

    def zero(self, like: Tree) -> Total:
        return Total.zero(like)

    def lift(self, updates: Update, info: Info, key: Tensor) -> Total:
        return weighted_total(updates, tree.map(lambda _: updates.weight, updates.value))

    def lift_scaled(self, updates: Update, factors: Tree, info: Info, key: Tensor) -> Total:
        if not factors:
            return self.lift(updates, info, key)
        weights = {id(x): updates.weight * x for x in tree.leaves(factors)}  # many tensors share one factor
        return weighted_total(updates, tree.map(lambda x: weights[id(x)], factors))

    def merge(self, a: Total, b: Total) -> Total:
        return a.merge(b)

    def finish(self, partial: Total, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        return partial, state, {}


def weighted_total(updates: Update, weights: Tree) -> Total:
    """The sum over a stack of updates, each tensor with weights (C,) of its own."""
    w = updates.weight
    return Total(tree.map(tree.weighted_sum, updates.value, weights), w.sum(), torch.full_like(w[0], len(w)))
