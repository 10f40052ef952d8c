"""Keeping every update until a round has said whose belong together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from atoll import tree
from atoll.core import Reducer, Stack, StackReducer, Total
from atoll.reducers.around import ReducerAround
from atoll.tree import Tree


@dataclass(frozen=True)
class Deferred(ReducerAround[Stack], StackReducer):
    """Another reducer, lifted at the end: a round with several servers finishes each one's rows of the stack."""

    inner: Reducer[Any]

    def init(self, like: Tree) -> Tree:
        return self.inner.init(like)

    def finish(self, partial: Stack, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        like = tree.map(lambda x: x.new_zeros(x.shape[1:]), partial.updates.value)
        lifted = self.inner.lift(partial.updates, partial.info, key) if len(partial) else self.inner.zero(like)
        return self.inner.finish(lifted, state, key)
