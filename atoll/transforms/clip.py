"""Bounds on what one client can do."""

from dataclasses import dataclass, replace

from torch import Tensor

from atoll import tree
from atoll.core import Positive, Spec, Transform, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class ClipL2(Transform):
    """Scale an update down to length `bound` if it is longer: u * min(1, bound / |u|)."""

    bound: Positive

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        return self, replace(spec, l2=self.bound if spec.l2 is None else min(self.bound, spec.l2))

    def client(self, update: Update, state: Tree, memory: Tree, key: Tensor) -> tuple[Update, Tree]:
        factor = (self.bound / (tree.norm(update.value) + 1e-12)).clamp(max=1.0)
        return update._replace(value=tree.scale(update.value, factor)), memory
