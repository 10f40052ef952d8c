"""Keeping every update: for rounds without a server, which mix the stack with weights of their own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from atoll import tree
from atoll.core import Stack, StackReducer, Total
from atoll.reducers.mean import weighted_total
from atoll.tree import Tree


@dataclass(frozen=True)
class Collect(StackReducer):
    """Do not reduce before the end: the partial aggregate is the stack of all updates."""

    def finish(self, partial: Stack, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        updates = partial.updates
        if not len(partial):
            like = tree.map(lambda x: x.new_zeros(x.shape[1:]), updates.value)
            return Total.zero(like), state, {}
        return weighted_total(updates, tree.map(lambda _: updates.weight, updates.value)), state, {}
