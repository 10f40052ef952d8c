"""Clients that differ in kind: which share of them belongs to which group, and what each group holds of a model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from atoll.core.task import Model
from atoll.tree import Tree


@dataclass(frozen=True)
class ClientGroups:
    """Shares of clients by group, which sum to 1. Every client is sent the number of its own under "group".

    What `algorithm.send` gives has that entry, too: 0, for whoever runs it without groups.
    """

    shares: tuple[float, ...]

    def held(self, model: Model, group: int) -> Model | None:
        """Of every tensor of the model what a group holds: 1 or 0 in each place, the upper left; None: all of it."""
        return None


def held_part(values: Tree, held: Tree) -> Tree:
    """What is left of tensors without the rows, columns, ... that are not held: their upper left corners."""
    return {
        name: held_part(x, held[name]) if isinstance(x, dict) else corner(x, held[name]) for name, x in values.items()
    }


def corner(x: Tensor, mask: Tensor) -> Tensor:
    """The upper left corner of a tensor that a mask leaves.

    >>> import torch
    >>> corner(torch.ones(3, 4), torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])).shape
    torch.Size([1, 2])
    """
    for axis in range(x.dim()):
        others = [d for d in range(mask.dim()) if d != axis]
        line = mask.amax(others) if others else mask
        x = x.narrow(axis, 0, int((line > 0).sum()))
    return x
