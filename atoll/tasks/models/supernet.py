"""A network that is searched for: every edge of a cell is a mixture of operations."""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from atoll.errors import ConfigError
from atoll.tasks.models.shapes import Shape, image

OperationName = Literal["none", "skip", "average", "conv3", "conv5"]
OPERATIONS: tuple[OperationName, ...] = ("none", "skip", "average", "conv3", "conv5")
EDGES = ((0, 1), (0, 2), (1, 2))  # from the cell's input to its two nodes, and between these


class Supernet(nn.Module):
    """DARTS-like: each edge is sum_o softmax(alpha_e)_o o(x) over five operations (Liu et al., 2019; He et al., 2020).

    A 3x3 stem, one cell of two nodes and three edges, the sum of both nodes, the mean over pixels, a linear head. The
    parameter `alpha` (edges, operations) is the architecture: `fednas` learns it beside the weights.
    """

    def __init__(self, inputs: Shape, outputs: int, channels: Annotated[int, Field(ge=1)] = 8) -> None:
        super().__init__()
        before, _, _ = image("supernet", inputs, smallest=3, why="its convolutions read 5 x 5 pixels")
        self.stem = nn.Conv2d(before, channels, 3, padding=1)
        self.edges = nn.ModuleList(nn.ModuleDict(_weighted(OPERATIONS, channels)) for _ in EDGES)
        self.alpha = nn.Parameter(torch.zeros(len(EDGES), len(OPERATIONS)))
        self.head = nn.Linear(channels, outputs)

    def forward(self, x: Tensor) -> Tensor:
        shares = self.alpha.softmax(1)
        nodes = [torch.relu(self.stem(x))]
        for node in (1, 2):
            into = [e for e, (_, to) in enumerate(EDGES) if to == node]
            nodes.append(sum((self._edge(e, nodes[EDGES[e][0]], shares[e]) for e in into), torch.zeros(())))
        out: Tensor = self.head((nodes[1] + nodes[2]).mean((2, 3)))
        return out

    def _edge(self, edge: int, x: Tensor, shares: Tensor) -> Tensor:
        mixed = [shares[i] * _operation(name, self.edges[edge], x) for i, name in enumerate(OPERATIONS) if i]
        return torch.stack(mixed).sum(0)


class CellNet(nn.Module):
    """The network that a search ends with: a supernet's cell with one operation on each edge.

    `operations` are those of the edges input-1, input-2 and 1-2. Parameters are called as they are in the supernet.
    """

    def __init__(
        self,
        inputs: Shape,
        outputs: int,
        operations: list[OperationName] = ["conv3", "skip", "conv3"],  # noqa: B006 (only read; the schema shows it)
        channels: Annotated[int, Field(ge=1)] = 8,
    ) -> None:
        super().__init__()
        before, _, _ = image("cell_net", inputs, smallest=3, why="its convolutions read 5 x 5 pixels")
        if len(operations) != len(EDGES):
            raise ConfigError(
                f"task.model.operations: {len(operations)} for {len(EDGES)} edges. Name one for each, such as "
                "['conv3', 'skip', 'conv3']."
            )
        self.operations = tuple(operations)
        self.stem = nn.Conv2d(before, channels, 3, padding=1)
        self.edges = nn.ModuleList(nn.ModuleDict(_weighted((name,), channels)) for name in self.operations)
        self.head = nn.Linear(channels, outputs)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.stem(x))
        a = _operation(self.operations[0], self.edges[0], first)
        b = _operation(self.operations[1], self.edges[1], first) + _operation(self.operations[2], self.edges[2], a)
        out: Tensor = self.head((a + b).mean((2, 3)))
        return out


def derived_operations(alpha: Tensor) -> list[OperationName]:
    """The strongest operation of every edge: never `none`, which would win wherever an edge is of little use.

    >>> derived_operations(torch.tensor([[9.0, 1.0, 0.0, 2.0, 0.0]]))
    ['conv3']
    """
    return [OPERATIONS[1 + int(row[1:].argmax())] for row in alpha]


def derived_network(state: Mapping[str, Tensor]) -> tuple[list[OperationName], dict[str, Tensor]]:
    """The operations that a trained supernet's state chooses, and the weights of the `cell_net` of these."""
    chosen = derived_operations(state["alpha"])
    wanted = ("stem.", "head.", *(f"edges.{e}.{name}." for e, name in enumerate(chosen)))
    return chosen, {k: v for k, v in state.items() if k.startswith(wanted)}


def _weighted(names: tuple[OperationName, ...], channels: int) -> dict[str, nn.Module]:
    return {n: nn.Conv2d(channels, channels, int(n[-1]), padding=int(n[-1]) // 2) for n in names if n[-1].isdigit()}


def _operation(name: OperationName, weighted: nn.Module, x: Tensor) -> Tensor:
    if name == "none":
        return torch.zeros_like(x)
    if name == "skip":
        return x
    if name == "average":
        return F.avg_pool2d(x, 3, stride=1, padding=1)
    found: Tensor = torch.relu(weighted.get_submodule(name)(x))
    return found
