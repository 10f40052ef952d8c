"""Adaptive clipping: the clipping norm follows a quantile of the updates' norms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from atoll import tree
from atoll.core import Derived, Positive, Scaling, Scheduled, Share, Spec, Total, Transform, Unsigned, Update, l2_norm
from atoll.errors import ConfigError
from atoll.transforms.clip import SAFE
from atoll.transforms.requirements import check_number, needs_equal_weights, needs_real, needs_sum
from atoll.tree import Tree

PART = "within"  # a part of its own in every update: was it within the bound?
_LEAST, _MOST = 1e-12, 1e20  # where a bound stays: beyond, float32 could not tell how long an update is


@dataclass(frozen=True)
class AdaptiveClip(Scaling):
    """Clip to a bound that moves to a quantile of the updates' lengths: C <- C exp(-rate (b - quantile)).

    b is the share of clients within the bound C, and noise after this transform falls on their count as well: both go
    out as one vector, the update over C and the count with `count_share` of the squared sensitivity. With a noise
    multiplier z that is z_d = z / sqrt(1 - count_share) on the update and sigma_b = z / (2 sqrt(count_share)) on
    the count, hence z_d = (z^-2 - (2 sigma_b)^-2)^(-1/2) (Andrew et al., 2021, theorem 1), and the event of the noise
    counts both. Since the update is over C, the noise follows the bound of the round. C stays within 1e-12 and 1e20.
    """

    keeps_zeros: ClassVar[bool] = True
    keyed_server: ClassVar[bool] = False

    initial_max_norm: Positive = 0.1
    quantile: Share = 0.5
    rate: Unsigned = 0.2
    count_share: Annotated[float, Field(gt=0, lt=1), Scheduled()] = 0.01
    unit: Derived = float("nan")  # what the count is multiplied by: half of that has `count_share` of the sensitivity

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        check_number("adaptive_clip.initial_max_norm", self.initial_max_norm)
        if not 0 < self.count_share < 1:
            raise ConfigError(f"adaptive_clip.count_share: must be above 0 and below 1 (got {self.count_share}).")
        needs_equal_weights(spec, "adaptive_clip")
        needs_sum(spec, "adaptive_clip")
        needs_real(spec, "adaptive_clip")
        size = None if spec.size is None else spec.size + 1
        unit = SAFE * 2.0 * (self.count_share / (1.0 - self.count_share)) ** 0.5
        return replace(self, unit=unit), replace(spec, l2=(1.0 - self.count_share) ** -0.5, l1=None, size=size)

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        return {"bound": torch.tensor(float(self.initial_max_norm), device=tree.device(like))}, {}

    def scaled(self, update: Update, state: Tree) -> tuple[Update, Tree]:
        norm, bound = l2_norm(update.value), _clamped(state["bound"])
        factor = SAFE / torch.maximum(norm, bound)
        within = (norm <= bound).float() - 0.5
        factors = {**tree.map(lambda _: factor, update.value), PART: torch.ones_like(factor)}
        return update._replace(value={**update.value, PART: self.unit * within}), factors

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        bound = _clamped(state["bound"])
        share = total.value[PART] / (self.unit * total.weight) + 0.5
        next_bound = _clamped(bound * torch.exp(-self.rate * (share - self.quantile)))
        return replace(total, value=tree.scale(tree.without(total.value, (PART,)), bound)), {"bound": next_bound}


def _clamped(bound: Tensor) -> Tensor:
    return bound.clamp(_LEAST, _MOST)
