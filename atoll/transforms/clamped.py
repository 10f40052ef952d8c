"""Fixed point of what a local randomiser gave: noise has no bound, so numbers beyond a range are cut to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Positive, Spec, Total, Transform, Update
from atoll.transforms.integers import FixedPoint
from atoll.transforms.requirements import needs_equal_weights, needs_real
from atoll.tree import Tree

PART = "clamped"  # a part of its own in every update, and the name of its diagnostics


@dataclass(frozen=True)
class ClampedFixedPoint(FixedPoint):
    """floor(min(max(x, -range), range) / step + u): of a message that is private already, so the guarantee stays.

    Which share of its numbers was cut, every client says in a number beside them, in steps of step / range: it follows
    from the message alone. The record has the mean, since a mean of cut numbers is not right on average.
    """

    named: ClassVar[str] = "fixed_point"
    allowed_after_noise: ClassVar[bool] = True

    range: Positive

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        needs_real(spec, "fixed_point")
        needs_equal_weights(spec, "fixed_point")
        noise = None if spec.noise is None else spec.noise / self.step
        largest = self.range / self.step + 1
        size = None if spec.size is None else spec.size + 1
        return self, replace(
            spec, linf=largest, noise=noise, domain="integer", step=self.step, unbiased=False, size=size
        )

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        return {PART: torch.zeros((), dtype=torch.float64, device=tree.device(like))}, {}

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        within = tree.map(lambda x: x.clamp(-self.range, self.range), update.value)
        sent, own = super().client(update._replace(value=within), state, own, key)
        beyond = [(x.abs() > self.range).sum() for x in tree.leaves(update.value)]
        share = torch.stack(beyond).sum().double() / tree.count(update.value)
        return sent._replace(value={**sent.value, PART: torch.round(share * self.range / self.step)}), own

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        share = total.value[PART] * self.step / self.range / total.weight.double().clamp(min=1.0)
        rest = replace(total, value=tree.without(total.value, (PART,)))
        return super().server(rest, state, key)[0], {PART: share.double()}

    def diagnostics(self, state: Tree) -> Tree:
        return {PART: state[PART]}
