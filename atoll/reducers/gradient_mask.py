"""FedGMA: where clients do not agree on the sign, the mean goes less far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from atoll import tree
from atoll.core import Stack, StackReducer, Total
from atoll.reducers.mean import weighted_total
from atoll.tree import Tree

_STATISTICS = "buffers"  # of a model: means, not directions


@dataclass(frozen=True)
class GradientMask(StackReducer):
    """Gradient masked averaging: m * the weighted mean (Tenison et al., 2022: FedGMA).

    a = |mean of sign(u_k)| in every coordinate, all clients alike; m = 1 where a >= threshold, else a. With
    threshold = 0 it is the mean. Statistics (BatchNorm's) are averaged as they are.
    """

    assumes: ClassVar[str] = "clients differ and do not lie: it is no defence, and one unbounded liar breaks it"

    threshold: Annotated[float, Field(ge=0, le=1)] = 0.4

    def finish(self, partial: Stack, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        updates = partial.updates
        if not len(partial):
            return Total.zero(tree.map(lambda x: x.new_zeros(x.shape[1:]), updates.value)), state, {}
        total = weighted_total(updates, tree.map(lambda _: updates.weight, updates.value))
        shared = tree.without(updates.value, (_STATISTICS,))
        masks = tree.map(self._mask, shared)
        masked = tree.map(lambda x, m: x * m, tree.without(total.value, (_STATISTICS,)), masks)
        value = {name: masked.get(name, part) for name, part in total.value.items()}
        return Total(value, total.weight, total.count), state, {"agreed": _share_of_ones(masks)}

    def _mask(self, x: Tensor) -> Tensor:
        agreement = torch.sign(x).mean(0).abs() if x.is_floating_point() else torch.ones_like(x[0], dtype=torch.float32)
        return torch.where(agreement >= self.threshold, 1.0, agreement)


def _share_of_ones(masks: Tree) -> Tensor:
    """The share of coordinates that go all the way."""
    leaves = [m.flatten() for m in tree.leaves(masks)]
    return (torch.cat(leaves) == 1).float().mean() if leaves else torch.ones(())
