"""Sending signs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Positive, Spec, Total
from atoll.transforms.compress.compressor import counted
from atoll.transforms.compress.largest import Feedback, LargestEntries, ShareSent, placed
from atoll.transforms.compress.leafwise import Leafwise
from atoll.tree import Tree
from atoll.wire import Encoding


@dataclass(frozen=True)
class Sign(Leafwise):
    """The sign of every entry, and one size for each tensor: the mean of its entries' sizes.

    With feedback 1 it converges where plain signs do not (Karimireddy et al., 2019). `size` "majority": signs alone,
    and the server moves every coordinate by `step` where most point to (Bernstein et al., 2018). There are two signs: 0
    counts as below 0.
    """

    size: Literal["mean", "majority"] = "mean"
    step: Positive = 1e-3
    feedback: Feedback = 0.0

    def after(self, spec: Spec) -> Spec:
        if self.size == "mean":
            return replace(spec, bits=1.0, l1=None)  # the mean size times sqrt(n) is at most the length
        l2, l1 = (None, None) if spec.size is None else (self.step * math.sqrt(spec.size), self.step * spec.size)
        return replace(spec, bits=1.0, l2=l2, l1=l1)

    def takes(self, like: Tensor) -> bool:
        return like.numel() > 0 if self.size == "majority" else super().takes(like)

    def arrived_leaf(self, x: Tensor, key: Tensor) -> Tensor:
        size = _mean_size(x) if self.size == "mean" else torch.full((), self.step, dtype=x.dtype, device=x.device)
        return torch.where(x > 0, size, -size)

    def pack_leaf(self, x: Tensor, key: Tensor) -> tuple[Tree, Tree]:
        numbers = {"size": _mean_size(x)} if self.size == "mean" else {}
        return numbers, {"signs": (x.flatten() > 0).to(torch.int32)}

    def unpack_leaf(self, numbers: Tree, codes: Tree, like: Tensor, key: Tensor) -> Tensor:
        signs: Tensor = (2 * codes["signs"] - 1).reshape(like.shape)
        return (signs * (numbers["size"] if self.size == "mean" else self.step)).to(like.dtype)

    def leaf_encodings(self, like: Tensor) -> Tree:
        return {"signs": Encoding(kind="bits", bits=1)}

    def aggregated(self, total: Total, state: Tree) -> tuple[Total, Tree]:
        if self.size == "mean":
            return total, state
        step = self.step * total.weight
        return replace(total, value=tree.map(lambda x: (x.sign() * step).to(x.dtype), total.value)), state


def _mean_size(x: Tensor) -> Tensor:
    total: Tensor = torch.linalg.vector_norm(x.flatten(), 1)
    return total / x.numel()


@dataclass(frozen=True)
class Ternary(LargestEntries):
    """The largest `share` of each tensor's entries, as signs and one size: the mean of theirs.

    STC (Sattler et al., 2019). With `both_ways` the server does the same to what it aggregated, with a residual of its
    own.
    """

    fixed_length: ClassVar[bool] = False
    signs: ClassVar[bool] = True

    share: ShareSent = 0.01
    feedback: Feedback = 1.0
    both_ways: bool = True

    def after(self, spec: Spec) -> Spec:
        return replace(spec, bits=self.share * (math.log2(1 / self.share) + 3.0), l1=None)

    def message_leaf(self, values: Tensor, places: Tensor, mean: Tensor | None) -> tuple[Tree, Tree]:
        return {"size": mean}, {"places": places, "signs": (values > 0).to(torch.int32)}

    def unpack_leaf(self, numbers: Tree, codes: Tree, like: Tensor, key: Tensor) -> Tensor:
        signs = (2 * codes["signs"] - 1).to(like.dtype)
        return placed(signs * numbers["size"], codes["places"], like)

    def leaf_encodings(self, like: Tensor) -> Tree:
        return {"places": Encoding(kind="sorted", limit=like.numel()), "signs": Encoding(kind="bits", bits=1)}

    def server_state(self, like: Tree) -> Tree:
        return {"residual": tree.zeros_like(like)} if self.both_ways else {}

    def aggregated(self, total: Total, state: Tree) -> tuple[Total, Tree]:
        if not self.both_ways:
            return total, state
        total = counted(total)
        sent, held = self.sent_and_held(total.mean(), state["residual"])
        return replace(total, value=tree.scale(sent, total.weight)), {"residual": held}
