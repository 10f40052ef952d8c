"""Sending fewer bits of every number."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from atoll import rng, tree
from atoll.core import Spec
from atoll.transforms.compress import fused
from atoll.transforms.compress.leafwise import Leafwise
from atoll.transforms.compress.rotation import block_of, rotated, rotated_back
from atoll.tree import Tree
from atoll.wire import Encoding

_HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_ROTATED = 240.0  # 4096 / (2 ln 4096), of entries as large as those of a block that holds all
_LARGEST, _FINEST = 65504.0, 2.0**-24  # of float16: its range, and the steps around 0


@dataclass(frozen=True)
class Qsgd(Leafwise):
    """Each entry as a sign and one of `levels` shares of its tensor's length, rounded up or down at random.

    Right on average (Alistarh et al., 2017).
    """

    keyed: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True

    levels: Annotated[int, Field(ge=1, le=2**15)] = 16

    def after(self, spec: Spec) -> Spec:
        longer = None if spec.size is None else 1 + math.sqrt(spec.size) / self.levels
        return _rounded(spec, float(self._width), longer)

    def too_coarse(self, like: Tree) -> str | None:
        most = max((x.numel() for x in tree.leaves(like) if self.takes(x)), default=0)
        return f"use {math.ceil(math.sqrt(most))} levels or more" if self.levels**2 < most else None

    def arrived_leaf(self, x: Tensor, key: Tensor) -> Tensor:
        if not fused.usable(x):
            return super().arrived_leaf(x, key)
        length = x.flatten().norm()
        return self._by_kernel(x.flatten(), length, key, decode=True).reshape(x.shape)

    def pack_leaf(self, x: Tensor, key: Tensor) -> tuple[Tree, Tree]:
        flat = x.flatten()
        length = flat.norm()
        if fused.usable(x):
            return {"length": length}, {"levels": self._by_kernel(flat, length, key, decode=False)}
        shares = self.levels * (flat.abs() / length.clamp(min=_least(length)))  # in this order: 0 / 0 must stay 0
        level = torch.floor(shares + rng.quick_uniform(key, len(flat))).clamp(max=self.levels)
        return {"length": length}, {"levels": (level * flat.sign() + self.levels).to(torch.int32)}

    def unpack_leaf(self, numbers: Tree, codes: Tree, like: Tensor, key: Tensor) -> Tensor:
        shares: Tensor = (codes["levels"] - self.levels).to(like.dtype)
        unit: Tensor = numbers["length"] / self.levels
        return (shares * unit).reshape(like.shape)

    def _by_kernel(self, flat: Tensor, length: Tensor, key: Tensor, decode: bool) -> Tensor:
        sizes = torch.zeros_like(length), length.clamp(min=_least(length)), length / self.levels
        rounded: Tensor = fused.quantise(flat, key, *sizes, self.levels, True, decode)
        return rounded

    def leaf_encodings(self, like: Tensor) -> Tree:
        return {"levels": Encoding(kind="bits", bits=self._width)}

    @property
    def _width(self) -> int:
        return (2 * self.levels).bit_length()


@dataclass(frozen=True)
class UniformQuantise(Leafwise):
    """Each entry as one of 2^bits values between its tensor's least and largest, rounded up or down at random.

    Right on average. `rotate` spreads large entries over all coordinates first (Suresh et al., 2017), which makes the
    range, and with it the error, smaller.
    """

    keyed: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    linear: ClassVar[bool] = False

    bits: Annotated[int, Field(ge=1, le=16)] = 8
    rotate: bool = False

    def after(self, spec: Spec) -> Spec:
        coordinates = None if spec.size is None else spec.size * (2 if self.rotate else 1)  # with its padding
        longer = None if coordinates is None else 1 + math.sqrt(2 * coordinates) / self._steps
        return _rounded(spec, float(self.bits), longer)

    def too_coarse(self, like: Tree) -> str | None:
        """A step is (max - min) / steps, at most sqrt(2) |x| / steps, and moves n entries by half of that, about.

        Rotated, an entry is sqrt(2 ln 4096 / 4096) |x| at the most, or nearly so, where one block holds all there is.
        """
        most = max((x.numel() for x in tree.leaves(like) if self.takes(x)), default=0)
        least = math.sqrt(most / (_ROTATED if self.rotate and most > block_of(most) else 2))
        bits = max(3, math.ceil(math.log2(least + 1)) if most else 3)
        return f"use {bits} bits or more" if self.bits < bits else None

    def arrived_leaf(self, x: Tensor, key: Tensor) -> Tensor:
        if not fused.usable(x):
            return super().arrived_leaf(x, key)
        flat = self._spread(x, key)
        return self._spread_back(self._by_kernel(flat, flat.amin(), flat.amax(), key, decode=True), x, key)

    def pack_leaf(self, x: Tensor, key: Tensor) -> tuple[Tree, Tree]:
        flat = self._spread(x, key)
        low, high = flat.amin(), flat.amax()
        if fused.usable(flat):
            return {"low": low, "high": high}, {"levels": self._by_kernel(flat, low, high, key, decode=False)}
        step = ((high - low) / self._steps).clamp(min=_least(flat))
        level = torch.floor((flat - low) / step + rng.quick_uniform(key, len(flat))).clamp(0, self._steps)
        return {"low": low, "high": high}, {"levels": level.to(torch.int32)}

    def unpack_leaf(self, numbers: Tree, codes: Tree, like: Tensor, key: Tensor) -> Tensor:
        low, high = numbers["low"], numbers["high"]
        flat: Tensor = low + codes["levels"].to(like.dtype) * ((high - low) / self._steps)
        return self._spread_back(flat, like, key)

    def _spread(self, x: Tensor, key: Tensor) -> Tensor:
        return rotated(x.flatten(), rng.fold(key, 0)).flatten() if self.rotate else x.flatten()

    def _spread_back(self, flat: Tensor, like: Tensor, key: Tensor) -> Tensor:
        if self.rotate:
            flat = rotated_back(flat.reshape(-1, block_of(like.numel())), like.numel(), rng.fold(key, 0))
        return flat.reshape(like.shape)

    def _by_kernel(self, flat: Tensor, low: Tensor, high: Tensor, key: Tensor, decode: bool) -> Tensor:
        unit = (high - low) / self._steps
        rounded: Tensor = fused.quantise(flat, key, low, unit.clamp(min=_least(unit)), unit, self._steps, False, decode)
        return rounded

    def leaf_encodings(self, like: Tensor) -> Tree:
        return {"levels": Encoding(kind="bits", bits=self.bits)}

    @property
    def _steps(self) -> int:
        return (1 << self.bits) - 1


@dataclass(frozen=True)
class Drive(Leafwise):
    """One bit for each coordinate of the rotated update: its sign (Vargaftik et al., 2021).

    `scale` "unbiased" is right on average over all rotations, and nearly so over those of Hadamard's matrix, but not
    where a few entries make up most of a tensor; "nearest" has the least error in one message.
    """

    keyed: ClassVar[bool] = True

    scale: Literal["unbiased", "nearest"] = "unbiased"

    def after(self, spec: Spec) -> Spec:
        return _rounded(spec, 1.0, 1.0 if self.scale == "nearest" else None)

    def arrived_leaf(self, x: Tensor, key: Tensor) -> Tensor:
        if not fused.usable(x):
            return super().arrived_leaf(x, key)
        flat: Tensor = fused.drive(x.flatten(), key, block_of(x.numel()), self.scale == "unbiased")
        return flat.reshape(x.shape)

    def pack_leaf(self, x: Tensor, key: Tensor) -> tuple[Tree, Tree]:
        blocks = rotated(x.flatten(), key)
        total = blocks.abs().sum(1)
        nearest = total / blocks.shape[1]
        scale = nearest if self.scale == "nearest" else (blocks**2).sum(1) / total.clamp(min=_least(total))
        return {"scale": scale}, {"signs": (blocks > 0).to(torch.int32).flatten()}

    def unpack_leaf(self, numbers: Tree, codes: Tree, like: Tensor, key: Tensor) -> Tensor:
        signs = (2 * codes["signs"] - 1).to(like.dtype).reshape(-1, block_of(like.numel()))
        return rotated_back(signs * numbers["scale"][:, None], like.numel(), key).reshape(like.shape)

    def leaf_encodings(self, like: Tensor) -> Tree:
        return {"signs": Encoding(kind="bits", bits=1)}


@dataclass(frozen=True)
class HalfPrecision(Leafwise):
    """Each number in 16 bits: float16 (what is beyond its range becomes the largest) or bfloat16."""

    named: ClassVar[str] = "half"
    keeps_zeros: ClassVar[bool] = True

    format: Literal["float16", "bfloat16"] = "float16"

    def after(self, spec: Spec) -> Spec:
        if self.format == "bfloat16":
            return _rounded(spec, 16.0, 1 + 2.0**-7)
        if spec.size is None:
            return _rounded(spec, 16.0, None)
        l2 = None if spec.l2 is None else spec.l2 * (1 + 2.0**-10) + math.sqrt(spec.size) * _FINEST / 2
        return replace(spec, bits=16.0, l2=l2, l1=None)

    def takes(self, like: Tensor) -> bool:
        return like.is_floating_point()

    def pack_leaf(self, x: Tensor, key: Tensor) -> tuple[Tree, Tree]:
        within = x.clamp(-_LARGEST, _LARGEST) if self.format == "float16" else x
        return {}, {"halves": within.to(_HALF[self.format])}

    def unpack_leaf(self, numbers: Tree, codes: Tree, like: Tensor, key: Tensor) -> Tensor:
        return codes["halves"].to(like.dtype)  # type: ignore[no-any-return]

    def leaf_encodings(self, like: Tensor) -> Tree:
        return {"halves": Encoding()}


def _least(x: Tensor) -> float:
    """What may be divided by in place of 0."""
    return torch.finfo(x.dtype).smallest_normal


def _rounded(spec: Spec, bits: float, longer: float | None) -> Spec:
    """Bounds after rounding that may make an update longer by this factor; None: by more than is known."""
    if longer is not None:
        return replace(spec, bits=bits, l2=None if spec.l2 is None else spec.l2 * longer, l1=None)
    why = "quantisation can make an update longer, after clipping" if spec.l2 is not None else spec.unbounded_because
    return replace(spec, bits=bits, l2=None, l1=None, unbounded_because=why)
