"""Sending the same random entries of every update, so that what is sent can be added as it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from atoll import rng, tree
from atoll.core import Spec, Total, Transform, Update
from atoll.transforms.compress import entries, placed, random_places
from atoll.transforms.requirements import needs_real, needs_sum
from atoll.tree import Tree


@dataclass(frozen=True)
class SharedMask(Transform):
    """Send a random `share` of each tensor's entries, the same for all clients of a round and others in the next.

    A random mask (Konecny et al., 2016) whose places everybody draws from one key. A sum of such messages is the
    message of the sum, so that noise and secure sums take them; the server divides by the share, which makes it right
    on average. Where `rand_k` has places of its own for each client, their errors average out: here they do not.
    """

    keyed: ClassVar[bool] = False  # by its client, that is
    reshapes: ClassVar[bool] = True

    share: Annotated[float, Field(gt=0, le=1)]

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        needs_real(spec, "shared_mask")
        needs_sum(spec, "shared_mask")
        return self, replace(spec, bits=self.share * spec.bits)

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        device = tree.device(like)
        drawn_from = {
            "key": rng.key("shared_mask").to(device),
            "turn": torch.zeros((), dtype=torch.int64, device=device),
        }
        return {**drawn_from, "like": tree.zeros_like(like)}, {}

    def client_view(self, state: Tree) -> Tree:
        return tree.without(state, ("like",))

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        places = self._places(update.value, state)
        return update._replace(value=tree.map(lambda x, at: x.flatten()[at], update.value, places)), own

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        places = self._places(state["like"], state)
        value = tree.map(_spread, total.value, places, state["like"])
        return replace(total, value=value), {**state, "turn": state["turn"] + 1}

    def _places(self, like: Tree, state: Tree) -> Tree:
        """Of the entries of each tensor that are sent in this turn; all of a single number."""
        key, counter = rng.fold(state["key"], state["turn"]), iter(range(len(tree.leaves(like))))

        def chosen(x: Tensor) -> Tensor:
            if not x.numel():
                return torch.zeros(0, dtype=torch.int64, device=x.device)
            return random_places(rng.fold(key, next(counter)), x.numel(), entries(self.share, x.numel()))

        return tree.map(chosen, like)  # type: ignore[no-any-return]


def _spread(values: Tensor, places: Tensor, like: Tensor) -> Tensor:
    if not like.numel():
        return like
    return placed((values * (like.numel() / len(values))).to(like.dtype), places, like)
