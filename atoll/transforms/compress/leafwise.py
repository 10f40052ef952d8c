"""Compressors that pack each tensor by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import count
from typing import Any

from torch import Tensor

from atoll import rng, tree
from atoll.transforms.compress.compressor import Compressor, Packed
from atoll.tree import Tree


class Leafwise(Compressor):
    """One that packs each tensor by itself; single numbers and whole numbers stay as they are."""

    @abstractmethod
    def pack_leaf(self, x: Tensor, key: Tensor) -> tuple[Tree, Tree]:
        """The numbers and the codes of one tensor."""

    @abstractmethod
    def unpack_leaf(self, numbers: Tree, codes: Tree, like: Tensor, key: Tensor) -> Tensor:
        """The tensor again."""

    def arrived_leaf(self, x: Tensor, key: Tensor) -> Tensor:
        """`unpack_leaf` of `pack_leaf`."""
        return self.unpack_leaf(*self.pack_leaf(x, key), x, key)

    @abstractmethod
    def leaf_encodings(self, like: Tensor) -> Tree:
        """How its codes travel."""

    def takes(self, like: Tensor) -> bool:
        """Does it pack tensors like this one?"""
        return like.numel() > 1 and like.is_floating_point()

    def packs(self, like: Tree) -> bool:
        return any(map(self.takes, tree.leaves(like)))

    def pack(self, value: Tree, own: Tree, key: Tensor) -> tuple[Packed, Tree]:
        keys = self._keys(key)

        def packed(x: Any) -> Packed:
            if isinstance(x, dict):
                parts = {name: packed(part) for name, part in x.items()}
                codes = {name: part.codes for name, part in parts.items() if part.codes}
                return Packed({name: part.numbers for name, part in parts.items()}, codes)
            return Packed(*self.pack_leaf(x, next(keys))) if self.takes(x) else Packed(x, {})

        return packed(value), own

    def unpack(self, packed: Packed, like: Tree, key: Tensor) -> Tree:
        keys = self._keys(key)

        def unpacked(numbers: Any, codes: Any, x: Any) -> Any:
            if isinstance(x, dict):
                return {name: unpacked(numbers.get(name, {}), codes.get(name, {}), part) for name, part in x.items()}
            return self.unpack_leaf(numbers, codes, x, next(keys)) if self.takes(x) else numbers

        return unpacked(packed.numbers, packed.codes, like)  # type: ignore[no-any-return]

    def arrived(self, value: Tree, own: Tree, key: Tensor) -> tuple[Tree, Tree]:
        keys = self._keys(key)
        return tree.map(lambda x: self.arrived_leaf(x, next(keys)) if self.takes(x) else x, value), own

    def encodings(self, like: Tree) -> Tree:
        def encoded(x: Any) -> Tree:
            if isinstance(x, dict):
                return {name: part for name, value in x.items() if (part := encoded(value))}
            return self.leaf_encodings(x) if self.takes(x) else {}

        return encoded(like)

    def _keys(self, key: Tensor) -> Iterator[Tensor]:
        """One for each tensor; the same one where nothing is drawn."""
        return (rng.fold(key, i) if self.keyed else key for i in count())
