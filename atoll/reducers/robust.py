"""Reducers that a minority of wild updates cannot move far. They ignore weights: a liar could claim any."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from atoll import tree
from atoll.core import Spec, Total, Update
from atoll.reducers.collect import Stack


@dataclass(frozen=True)
class Median:
    """The middle value of every coordinate; the mean of the two middle ones for an even number (Yin et al., 2018)."""

    def spec(self) -> Spec:
        return Spec(additive=False)

    def lift(self, updates: Update) -> Stack:
        return Stack(updates)

    def finish(self, partial: Stack) -> Total:
        return _total(partial, _middle)


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of every coordinate without the `share` lowest and the `share` highest values (Yin et al., 2018)."""

    share: Annotated[float, Field(ge=0, lt=0.5)] = 0.1

    def spec(self) -> Spec:
        return Spec(additive=False)

    def lift(self, updates: Update) -> Stack:
        return Stack(updates)

    def finish(self, partial: Stack) -> Total:
        cut = int(self.share * len(partial.updates.weight))
        return _total(partial, lambda x: x.sort(0).values[cut : len(x) - cut].mean(0))


def _total(partial: Stack, reduce: Callable[[Tensor], Tensor]) -> Total:
    w = partial.updates.weight
    return Total(tree.map(reduce, partial.updates.value), torch.ones_like(w[0]), torch.full_like(w[0], len(w)))


def _middle(x: Tensor) -> Tensor:
    ordered, n = x.sort(0).values, len(x)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
