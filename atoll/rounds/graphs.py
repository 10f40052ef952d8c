"""Who talks to whom, and with what weight."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from atoll import rng

GraphName = Literal["ring", "complete", "star", "grid", "random"]


def adjacency(name: GraphName, n: int, probability: float, key: Tensor) -> Tensor:
    """(n, n) booleans, symmetric, without loops. "random" is Erdős-Rényi laid over a ring, so that it is connected."""
    i = torch.arange(n)
    ring = (i[:, None] - i[None, :]).remainder(n)
    if name == "complete":
        found = torch.ones(n, n, dtype=torch.bool)
    elif name == "star":
        found = (i[:, None] == 0) | (i[None, :] == 0)
    elif name == "grid":
        wide = max(1, int(n**0.5))
        row, column = i // wide, i % wide
        found = ((row[:, None] - row).abs() + (column[:, None] - column).abs()) == 1
    else:
        found = (ring == 1) | (ring == n - 1)
    if name == "random":
        upper = torch.triu(rng.uniform(key, (n, n)) < probability, 1)
        found = found | upper | upper.T
    return found & ~torch.eye(n, dtype=torch.bool)


def mixing(neighbours: Tensor) -> Tensor:
    """Metropolis-Hastings weights: symmetric, rows sum to 1, so that repeated mixing reaches the plain mean."""
    degree = neighbours.sum(1).float()
    weights = torch.where(neighbours, 1.0 / (1.0 + torch.maximum(degree[:, None], degree[None, :])), 0.0)
    return weights + torch.diag(1.0 - weights.sum(1))
