"""Sending some of an update's entries."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from atoll import rng
from atoll.core import Spec
from atoll.transforms.compress import fused
from atoll.transforms.compress.largest import Feedback, LargestEntries, ShareSent, entries, placed
from atoll.transforms.compress.leafwise import Leafwise
from atoll.tree import Tree
from atoll.wire import Encoding


def random_places(key: Tensor, n: int, k: int) -> Tensor:
    """k different places below n, each with the same chance: one of every stretch of n / k, from a random start on."""
    if fused.draws(key):
        by_kernel: Tensor = fused.random_places(key, n, k)
        return by_kernel
    coarse, fine = rng.quick_uniform(key, 2 * k + 2).double().reshape(2, k + 1)
    u = coarse + fine * 2.0**-24
    bounds = torch.arange(k + 1, device=key.device) * n // k
    within = (u[:k] * (bounds[1:] - bounds[:-1])).long()
    places: Tensor = (bounds[:-1] + within + (u[k] * n).long()) % n
    return places


@dataclass(frozen=True)
class TopK(LargestEntries):
    """Send the largest `share` of each tensor's entries; the rest stays with the client until it participates again.

    With feedback 1 nothing is lost (Stich et al., 2018); OARF adds half of what was held back (0.5). Places cost about
    log2(1 / share) + 2 bits each, or 64 with `positions = "int64"`, as PyTorch's own tensors have them.
    """

    keeps_zeros: ClassVar[bool] = True

    share: ShareSent
    feedback: Feedback = 1.0
    positions: Literal["packed", "int64"] = "packed"

    @property
    def fixed_length(self) -> bool:  # type: ignore[override]
        """Packed positions take fewer bytes where they lie close together."""
        return self.positions == "int64"

    def after(self, spec: Spec) -> Spec:
        place = 64.0 if self.positions == "int64" else math.log2(1 / self.share) + 2.0
        return replace(spec, bits=self.share * (spec.bits + place))

    def message_leaf(self, values: Tensor, places: Tensor, mean: Tensor | None) -> tuple[Tree, Tree]:
        return {"values": values}, {"places": places}

    def unpack_leaf(self, numbers: Tree, codes: Tree, like: Tensor, key: Tensor) -> Tensor:
        return placed(numbers["values"], codes["places"], like)

    def leaf_encodings(self, like: Tensor) -> Tree:
        return {"places": Encoding() if self.positions == "int64" else Encoding(kind="sorted", limit=like.numel())}


@dataclass(frozen=True)
class RandK(Leafwise):
    """Send a random `share` of each tensor's entries. Server and client draw the places from one key, for nothing.

    One place from each of k stretches of the tensor, which begin at a random entry: every entry has the same chance, so
    means and errors are those of k places drawn from all, and n random numbers less are needed.

    Without feedback the entries are scaled by 1 / share, so that they are right on average; with feedback they are sent
    as they are, and what was not sent is added to the next update (Stich et al., 2018).
    """

    keyed: ClassVar[bool] = True

    share: ShareSent
    feedback: Feedback = 0.0

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        """Without feedback."""
        return not self.feedback

    def too_coarse(self, like: Tree) -> str | None:
        return "give rand_k feedback, too" if self.unbiased else None

    def after(self, spec: Spec) -> Spec:
        l2, l1 = (None if x is None else x * self._scale for x in (spec.l2, spec.l1))
        return replace(spec, bits=self.share * spec.bits, l2=l2, l1=l1)

    def pack_leaf(self, x: Tensor, key: Tensor) -> tuple[Tree, Tree]:
        return {"values": self._values(x, self._places(x, key))}, {}

    def unpack_leaf(self, numbers: Tree, codes: Tree, like: Tensor, key: Tensor) -> Tensor:
        return placed(numbers["values"], self._places(like, key), like)

    def arrived_leaf(self, x: Tensor, key: Tensor) -> Tensor:
        places = self._places(x, key)  # drawn once
        return placed(self._values(x, places), places, x)

    def leaf_encodings(self, like: Tensor) -> Tree:
        return {}

    @property
    def _scale(self) -> float:
        return 1.0 if self.feedback else 1.0 / self.share

    def _values(self, x: Tensor, places: Tensor) -> Tensor:
        values = x.flatten().gather(0, places)
        return values * (x.numel() / len(values)) if self.unbiased else values

    def _places(self, like: Tensor, key: Tensor) -> Tensor:
        n = like.numel()
        return random_places(key, n, entries(self.share, n))
