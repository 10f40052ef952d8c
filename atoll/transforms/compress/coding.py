"""Lossless coders for whatever is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from atoll.core import Spec
from atoll.transforms.compress.compressor import Compressor, Packed
from atoll.tree import Tree


@dataclass(frozen=True)
class Entropy(Compressor):
    """A lossless coder over what the compressors before it send: frequent codes take fewer bits.

    "entropy" for small alphabets (levels, signs); "zstd" for any bytes. The bytes that are reported were made.
    """

    keeps_zeros: ClassVar[bool] = True
    unbiased: ClassVar[bool] = True
    fixed_length: ClassVar[bool] = False

    code: Literal["entropy", "zstd"] = "entropy"

    def after(self, spec: Spec) -> Spec:
        return spec

    def pack(self, value: Tree, own: Tree, key: Tensor) -> tuple[Packed, Tree]:
        return Packed(value, {}), own

    def unpack(self, packed: Packed, like: Tree, key: Tensor) -> Tree:
        return packed.numbers

    def encodings(self, like: Tree) -> Tree:
        return {}

    def coder(self) -> str | None:
        return self.code
