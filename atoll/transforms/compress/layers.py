"""Sending some of the layers."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor

from atoll import tree
from atoll.core import Spec
from atoll.errors import SpecError
from atoll.transforms.compress.compressor import Compressor, Packed
from atoll.tree import Tree


@dataclass(frozen=True)
class MaskLayers(Compressor):
    """Send the tensors whose names match one of these patterns ("fc*", "*.bias"), and nothing of the others."""

    keeps_zeros: ClassVar[bool] = True

    send: Annotated[tuple[str, ...], Field(min_length=1)]

    def after(self, spec: Spec) -> Spec:
        return spec

    def own(self, like: Tree) -> Tree:
        names = [path for path, _ in tree.paths(like)]
        idle = [p for p in self.send if not any(_matches(name, (p,)) for name in names)]
        if idle:
            raise SpecError(f"mask_layers.send: {idle} match no tensor. There are {', '.join(names[:8])}.")
        return {}

    def pack(self, value: Tree, own: Tree, key: Tensor) -> tuple[Packed, Tree]:
        return Packed(self._chosen(value), {}), own

    def unpack(self, packed: Packed, like: Tree, key: Tensor) -> Tree:
        def filled(numbers: Any, x: Any, path: str) -> Any:
            if isinstance(x, dict):
                return {name: filled(numbers.get(name, {}), part, f"{path}/{name}") for name, part in x.items()}
            return numbers if _matches(path[1:], self.send) else x.new_zeros(x.shape)

        return filled(packed.numbers, like, "")  # type: ignore[no-any-return]

    def encodings(self, like: Tree) -> Tree:
        return {}

    def _chosen(self, value: Tree, prefix: str = "") -> Tree:
        parts = {
            name: self._chosen(x, f"{prefix}{name}/") if isinstance(x, dict) else x
            for name, x in value.items()
            if isinstance(x, dict) or _matches(f"{prefix}{name}", self.send)
        }
        return {name: part for name, part in parts.items() if not isinstance(part, dict) or part}


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    """By its path, or by what follows the part it is in."""
    names = {path, path.partition("/")[2]}
    return any(fnmatch(name, pattern) for name in names for pattern in patterns)
