"""The weighted mean: a sum, so parts merge in any order."""

from dataclasses import dataclass

import torch

from atoll import tree
from atoll.core import Spec, Total, Update


@dataclass(frozen=True)
class Mean:
    """The weighted mean of the updates: sum of w_k u_k over sum of w_k."""

    def spec(self) -> Spec:
        return Spec(additive=True)

    def lift(self, updates: Update) -> Total:
        w = updates.weight
        value = tree.map(lambda x: torch.tensordot(w.to(x.dtype), x, dims=1), updates.value)
        return Total(value, w.sum(), torch.full_like(w[0], len(w)))

    def finish(self, partial: Total) -> Total:
        return partial
