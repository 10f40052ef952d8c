"""How alike updates are."""

from __future__ import annotations

from torch import Tensor

from atoll.core import Stack
from atoll.reducers.gram import gram, lengths
from atoll.reducers.mean import weighted_total
from atoll.tree import Tree, map


def cosine_similarities(value: Tree, clients: int) -> Tensor:
    """(C, C), float64, of the updates of a stack as long vectors; 0 to one that is all zeros."""
    products = gram(value, clients)
    norms = products.diagonal().clamp(min=0).sqrt()
    apart = norms[:, None] * norms[None, :]
    return (products / apart.where(apart > 0, apart.new_ones(()))).clamp(-1.0, 1.0)


def mean_and_largest_length(stack: Stack, part: str) -> tuple[float, float]:
    """The length of the weighted mean of one part of the updates, and of the longest one."""
    updates = stack.updates._replace(value={part: stack.updates.value[part]})
    total = weighted_total(updates, map(lambda _: updates.weight, updates.value))
    mean = map(lambda x: x[None], total.mean())
    return float(lengths(mean, 1)[0]), float(lengths(updates.value, len(stack)).max())
