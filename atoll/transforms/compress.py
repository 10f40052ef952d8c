"""Sparsification: sending less than the whole update."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from atoll import tree
from atoll.core import Spec, Transform, Update
from atoll.transforms.requirements import needs_real
from atoll.tree import Tree


@dataclass(frozen=True)
class TopK(Transform):
    """Send the largest `share` of each tensor's entries; the rest stays with the client until it participates again.

    Error feedback: the residual is client state (Seide et al., 2014; Stich et al., 2018). An entry costs its value and
    a 32-bit position.
    """

    keeps_zeros: ClassVar[bool] = True
    keyed: ClassVar[bool] = False

    share: Annotated[float, Field(gt=0, le=1)]

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        needs_real(spec, "top_k")
        # What was held back is added to a later update, so a bound that held before does not hold any more.
        reason = "top_k adds what it held back, after clipping" if spec.l2 is not None else spec.unbounded_because
        return self, replace(spec, l2=None, l1=None, unbounded_because=reason, bits=self.share * (spec.bits + 32.0))

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        return {}, {"residual": tree.zeros_like(like)}

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        full = tree.add(update.value, own["residual"])
        sent = tree.map(self._largest, full)
        return update._replace(value=sent), {"residual": tree.sub(full, sent)}

    def _largest(self, x: Tensor) -> Tensor:
        flat = x.flatten()
        largest = flat.abs().topk(max(1, math.ceil(self.share * flat.numel()))).indices
        return torch.zeros_like(flat).scatter(0, largest, flat.gather(0, largest)).reshape(x.shape)
