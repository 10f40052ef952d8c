"""Fixed point of what a local randomiser gave: noise has no bound, so numbers beyond a range are cut to it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from atoll import tree
from atoll.core import Positive, Spec, Transform, Update
from atoll.transforms.integers import FixedPoint
from atoll.transforms.requirements import needs_equal_weights, needs_real
from atoll.tree import Tree


@dataclass(frozen=True)
class ClampedFixedPoint(FixedPoint):
    """floor(min(max(x, -range), range) / step + u): of a message that is private already, so the guarantee stays."""

    named: ClassVar[str] = "fixed_point"
    allowed_after_noise: ClassVar[bool] = True

    range: Positive

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        needs_real(spec, "fixed_point")
        needs_equal_weights(spec, "fixed_point")
        noise = None if spec.noise is None else spec.noise / self.step
        largest = self.range / self.step + 1
        return self, replace(spec, linf=largest, noise=noise, domain="integer", unbiased=False)

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        within = tree.map(lambda x: x.clamp(-self.range, self.range), update.value)
        return super().client(update._replace(value=within), state, own, key)
