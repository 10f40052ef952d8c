"""From compact columns to what a model takes: pure functions of one client's batch, picklable, safe under vmap."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.tree import Tree


@dataclass(frozen=True)
class Same:
    """The columns as they are."""

    def __call__(self, batch: Tree) -> Tree:
        return batch


@dataclass(frozen=True)
class Pixels:
    """Whole numbers to float32: x * scale, then (x - mean) / std for each channel of (..., C, H, W) where given."""

    scale: float = 1.0 / 255.0
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __call__(self, batch: Tree) -> Tree:
        return {**batch, "x": self._standard(batch["x"].float() * self.scale)}

    def _standard(self, x: Tensor) -> Tensor:
        if not self.mean:
            return x
        # plain numbers, channel by channel: a constant tensor would be a copy to the device inside a captured graph
        channels = zip(x.unbind(-3), self.mean, self.std, strict=True)
        return torch.stack([(c - mean) / std for c, mean, std in channels], -3)


@dataclass(frozen=True)
class Fields:
    """One row of numbers taken apart: x becomes a dict of named inputs, which a model gets by keyword."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # of one example's

    def __call__(self, batch: Tree) -> Tree:
        parts = torch.split(batch["x"], [math.prod(shape) for _, shape in self.shapes], -1)  # type: ignore[no-untyped-call]
        named = zip(self.shapes, parts, strict=True)
        return {**batch, "x": {name: part.reshape(len(part), *shape) for (name, shape), part in named}}


@dataclass(frozen=True)
class Chained:
    """One after the other: decode, then augment."""

    first: Callable[[Tree], Tree]
    then: Callable[[Tree], Tree]

    def __call__(self, batch: Tree) -> Tree:
        return self.then(self.first(batch))
