"""Krum: the update that is closest to its neighbours (Blanchard et al., 2017). A reducer outside of the package.

reducer = { name = "krum:Krum", byzantine = 1 }
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

from atoll import tree
from atoll.core import StackReducer, Total


@dataclass(frozen=True)
class Krum(StackReducer):
    """Of n updates the one whose n - f - 2 nearest others are nearest, by squared distance; f = `byzantine`."""

    assumes = "at most `byzantine` of n clients lie, and 2 byzantine + 2 < n"

    byzantine: Annotated[int, Field(ge=0)] = 1

    def tolerates(self, clients):  # `atoll check` tries it with so many liars
        return max(0, min(self.byzantine, (clients - 3) // 2))

    def finish(self, partial, state, key):
        if not len(partial):
            like = tree.map(lambda x: x.new_zeros(x.shape[1:]), partial.updates.value)
            return Total.zero(like), state, {"chosen": torch.tensor(-1)}
        chosen = self.choose(partial)
        one = torch.ones((), device=partial.updates.weight.device)
        total = Total(tree.rows(partial.updates.value, chosen), one, one * len(partial))
        return total, state, {"chosen": partial.info.id[chosen]}

    def choose(self, stack):
        flat = torch.cat([x.reshape(len(x), -1).double() for x in tree.leaves(stack.updates.value)], 1)
        distance = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist") ** 2
        nearest = max(1, min(len(flat) - 1, len(flat) - self.byzantine - 2))
        score = distance.sort(1).values[:, 1 : nearest + 1].sum(1)
        best = (score == score.min()).nonzero().flatten()  # of equals the lowest id, so that order does not matter
        return best[stack.info.id[best].argmin()]
