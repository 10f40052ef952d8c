"""A mean over clients of which each holds a part of the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Info, Reducer, Spec, Total, Update
from atoll.reducers.mean import Mean
from atoll.tree import Tree


@dataclass(frozen=True)
class HeldTotal:
    """A sum over clients, and the weights of each group in it."""

    total: Total
    weights: Tensor  # (groups,)


@dataclass(frozen=True, eq=False)
class HeldMean(Reducer[HeldTotal]):
    """Every number's mean over those who hold it: sum w_k u_kj / sum w_k over the clients k whose group holds j.

    What nobody holds stays as it was. The total is scaled so that its plain
    mean is this one; a client then moves the sum by more than its own length, so there is no bound for noise.
    """

    group: Tensor  # (N,) of each client
    held: tuple[Tree, ...]  # of every group, where it holds what: updates of 1 and 0

    def spec(self) -> Spec:
        return Spec(additive=False)

    def zero(self, like: Tree) -> HeldTotal:
        return HeldTotal(Total.zero(like), torch.zeros(len(self.held), device=tree.device(like)))

    def lift(self, updates: Update, info: Info, key: Tensor) -> HeldTotal:
        weight = updates.weight
        group = self.group.to(weight.device)[info.id.to(weight.device)]
        weights = torch.zeros(len(self.held), device=weight.device, dtype=weight.dtype).index_add(0, group, weight)
        return HeldTotal(Mean().lift(updates._replace(value=self._parts(updates.value, group)), info, key), weights)

    def _parts(self, value: Tree, group: Tensor) -> Tree:
        """What clients can have sent: nothing of what they do not hold, whoever made it up."""
        held = [tree.select(parts, tuple(value)) for parts in self.held]
        return tree.map(lambda x, *masks: x * torch.stack(masks).to(x)[group], value, *held)  # type: ignore[no-any-return]

    def merge(self, a: HeldTotal, b: HeldTotal) -> HeldTotal:
        return HeldTotal(a.total.merge(b.total), a.weights + b.weights)

    def finish(self, partial: HeldTotal, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        total = partial.total

        def scaled(x: Tensor, *masks: Tensor) -> Tensor:
            holders = sum((w * m.to(x.device) for w, m in zip(partial.weights, masks, strict=True)), x.new_zeros(()))
            return torch.where(holders > 0, x * (total.weight / holders.clamp(min=1e-30)), 0.0)

        held = [tree.select(parts, tuple(total.value)) for parts in self.held]
        value = tree.map(scaled, total.value, *held)
        return Total(value, total.weight, total.count), state, {}
