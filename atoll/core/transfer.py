"""Algorithms whose clients send what they make of each example, and not a change of a model."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor
from torch.nn import functional as F

from atoll.core.algorithm import Algorithm
from atoll.tree import Tree

PLACE = "place"  # of a batch, with Traits.places: which of the client's own examples each is


@runtime_checkable
class TransfersKnowledge(Protocol):
    """Clients send a row for each of their examples, and the server answers with one for each."""

    def extraction(self) -> Algorithm:
        """A pass over a client's examples after it has trained: the update has a row for each, and "read" is 1 in
        those that were read.
        """
        ...

    def answer(self, server: Tree, examples: int) -> Tree:
        """Zeros in the shape of what goes down for so many examples."""
        ...

    def report(self, server: Tree, examples: int) -> Tree:
        """Zeros in the shape of what goes up for so many examples."""
        ...

    def teach(self, server: Tree, rows: Tree, key: Tensor) -> tuple[Tree, Tensor]:
        """The server after it has learned from the rows of all clients, and what it answers for each."""
        ...


def apply_layers(params: Tree, prefix: str, x: Tensor) -> Tensor:
    """Convolutions (of odd size, padded) and then linear layers named PREFIX.0, PREFIX.1, ..., a ReLU between them.

    >>> import torch
    >>> apply_layers({"a.0.weight": torch.ones(1, 2), "a.0.bias": torch.ones(1)}, "a", torch.ones(3, 2)).tolist()
    [[3.0], [3.0], [3.0]]
    """
    depth = sum(name.startswith(f"{prefix}.") and name.endswith(".weight") for name in params)
    for i in range(depth):
        weight, bias = params[f"{prefix}.{i}.weight"], params[f"{prefix}.{i}.bias"]
        x = x.relu() if i else x
        if weight.dim() == 4:
            x = F.conv2d(x, weight, bias, padding=weight.shape[-1] // 2)
        else:
            x = F.linear(x.flatten(1), weight, bias)
    return x
