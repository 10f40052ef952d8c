"""Hidden units of a network: which rows and columns of which tensors belong to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor


class UnitAxis(NamedTuple):
    """An axis of a tensor over hidden units, `positions` neighbours each: the pixels of a flattened channel."""

    axis: int
    units: int
    positions: int = 1


@dataclass(frozen=True)
class UnitLayer:
    """A layer with weights, as it was met in a forward pass."""

    name: str
    kind: Literal["linear", "conv", "norm"]
    inputs: int  # units that it reads; of the first layer, the features of an example
    positions: int  # of its inputs that are one unit
    outputs: int
    tensors: tuple[str, ...]  # its parameters and buffers, by their names in the model

    @property
    def weighted(self) -> bool:
        return self.kind != "norm"


def unit_axes(layers: tuple[UnitLayer, ...]) -> dict[str, tuple[UnitAxis, ...]]:
    """For every tensor, its axes of hidden units: not the features of an example, nor the outputs of the model."""
    weighted = [layer for layer in layers if layer.weighted]
    axes: dict[str, tuple[UnitAxis, ...]] = {}
    for i, layer in enumerate(layers):
        first, last = layer is weighted[0], layer is weighted[-1]
        of_units = not last and i >= layers.index(weighted[0])
        out = (UnitAxis(0, layer.outputs),) if of_units else ()
        into = (UnitAxis(1, layer.inputs, layer.positions),) if layer.weighted and not first else ()
        axes |= {name: out + into if name.endswith("weight") else out for name in layer.tensors}
    return axes


def unit_mask(x: Tensor, axes: tuple[UnitAxis, ...], share: Tensor, others: bool = False) -> Tensor:
    """1 in the places of a tensor that a network with this share of all units has, and 0 elsewhere.

    Of n units the first ceil(share * n) are there, and at least one; or, if asked for, the others.

    >>> unit_mask(torch.zeros(2, 4), (UnitAxis(0, 2), UnitAxis(1, 2, positions=2)), torch.tensor(0.5)).tolist()
    [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    mask = torch.ones(x.shape, device=x.device)
    for axis, units, positions in axes:
        index = torch.arange(units * positions, device=x.device) // positions
        there = (index + 1e-4 < (share * units).clamp(min=1.0)) ^ others
        mask = mask * there.to(mask.dtype).reshape([-1 if d == axis else 1 for d in range(x.dim())])
    return mask
