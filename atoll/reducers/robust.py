"""Reducers that a minority of wild updates cannot move far. They ignore weights: a liar could claim any."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from atoll import tree
from atoll.core import Stack, StackReducer, Total
from atoll.tree import Tree


@dataclass(frozen=True)
class Median(StackReducer):
    """The middle value of every coordinate; the mean of the two middle ones for an even number (Yin et al., 2018)."""

    def finish(self, partial: Stack, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        return _unweighted(partial, _middle), state, {}


@dataclass(frozen=True)
class TrimmedMean(StackReducer):
    """The mean of every coordinate without the `share` lowest and the `share` highest values (Yin et al., 2018)."""

    share: Annotated[float, Field(ge=0, lt=0.5)] = 0.1

    def finish(self, partial: Stack, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        trimmed = int(self.share * len(partial))
        kept = slice(trimmed, len(partial) - trimmed)
        return _unweighted(partial, lambda x: x.sort(0).values[kept].mean(0)), state, {}


def _unweighted(stack: Stack, reduce: Callable[[Tensor], Tensor]) -> Total:
    """Reduced to one update of weight 1, whatever the clients' weights are; of nobody, zeros of weight 0."""
    w = stack.updates.weight
    reduce = reduce if len(stack) else _zeros
    value = tree.map(reduce, stack.updates.value)
    return Total(value, w.new_full((), float(len(stack) > 0)), w.new_full((), float(len(stack))))


def _middle(x: Tensor) -> Tensor:
    ordered, n = x.sort(0).values, len(x)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def _zeros(x: Tensor) -> Tensor:
    return torch.zeros(x.shape[1:], dtype=x.dtype, device=x.device)
