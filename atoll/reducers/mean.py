"""The weighted mean: a sum, so parts merge in any order."""

from dataclasses import dataclass

import torch

from atoll import tree
from atoll.core import Spec, Total, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class Mean:
    """The weighted mean of the updates: sum of w_k u_k over sum of w_k."""

    def spec(self) -> Spec:
        return Spec(additive=True)

    def lift(self, updates: Update) -> Total:
        return _total(updates, tree.map(lambda _: updates.weight, updates.value))

    def lift_scaled(self, updates: Update, factors: Tree) -> Total:
        """`lift(updates.scaled(factors))` in one pass over the updates."""
        weights = {id(x): updates.weight * x for x in tree.leaves(factors)}  # many tensors have one number
        return _total(updates, tree.map(lambda x: weights[id(x)], factors))

    def finish(self, partial: Total) -> Total:
        return partial


def _total(updates: Update, weights: Tree) -> Total:
    w = updates.weight
    return Total(tree.map(tree.weighted_sum, updates.value, weights), w.sum(), torch.full_like(w[0], len(w)))
