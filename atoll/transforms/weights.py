"""Client weights in the aggregate."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from atoll.core import Spec, Transform, Update
from atoll.tree import Tree


@dataclass(frozen=True)
class EqualWeights(Transform):
    """Every client counts the same, whatever its number of examples."""

    keeps_zeros: ClassVar[bool] = True
    keyed: ClassVar[bool] = False
    keeps_packing: ClassVar[bool] = True

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        return self, replace(spec, equal_weights=True)

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return update._replace(weight=torch.ones_like(update.weight)), own
