"""Clients that keep an update to themselves where it would not help."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Share, Spec, Total, Transform, Update
from atoll.errors import SpecError
from atoll.transforms.compress.compressor import counted
from atoll.transforms.requirements import needs_real
from atoll.tree import Tree


@dataclass(frozen=True)
class Relevance(Transform):
    """Send an update only if at least `threshold` of its signs are those of the last global step.

    CMFL (Wang et al., 2019). A client that does not send weighs nothing, and its bytes are those of an empty message.
    Nobody is held back in the first round.
    """

    keyed: ClassVar[bool] = False
    silences: ClassVar[bool] = True
    keeps_packing: ClassVar[bool] = True

    threshold: Share = 0.5

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        needs_real(spec, "relevance")
        if spec.equal_weights and spec.l2 is not None:
            raise SpecError(
                "relevance: who sends depends on its data, so equal weights and a bound do not make a private sum. "
                "Leave out relevance, or equal_weights."
            )
        return self, replace(spec, equal_weights=False, unbiased=False)

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        return {"step": tree.zeros_like(like), "known": torch.zeros((), device=tree.device(like))}, {}

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        sends = (state["known"] == 0) | (agreement(update.value, state["step"]) >= self.threshold)
        return update._replace(weight=update.weight * sends), own

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        somebody = total.weight > 0
        total = counted(total)
        step = tree.map(lambda new, old: torch.where(somebody, new, old), total.mean(), state["step"])
        return total, {"step": step, "known": torch.maximum(state["known"], somebody.float())}


def agreement(a: Tree, b: Tree) -> Tensor:
    """The share of entries with the same sign."""
    same = [(x.sign() == y.sign()).float().sum() for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True)]
    return torch.stack(same).sum() / tree.count(b)
