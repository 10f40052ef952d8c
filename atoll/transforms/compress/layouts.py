"""How a packed update travels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import torch

from atoll import tree
from atoll.tree import Tree
from atoll.wire import Encoding, Layout, Part

_SMALL_ALPHABET = 12  # bits of codes that an entropy coder takes
_Shapes = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


def layout_of(message: Tree, encodings: Mapping[str, Encoding], coder: str | None) -> Layout:
    """The layout of these tensors: encoded as said by path, else as they are; with a lossless coder, if any."""
    shapes = tuple((path, tuple(x.shape), x.dtype) for path, x in tree.paths(message))
    said = tuple((path, tuple(encoding.items())) for path, encoding in encodings.items())
    return _layout(shapes, said, coder)


@lru_cache(maxsize=256)
def _layout(shapes: _Shapes, said: tuple[tuple[str, tuple[tuple[str, object], ...]], ...], coder: str | None) -> Layout:
    encodings = dict(said)
    parts = [_part(path, shape, dtype, dict(encodings.get(path, ()))) for path, shape, dtype in shapes]
    return Layout(tuple(_coded(part, coder) for part in parts))


def _part(path: str, shape: tuple[int, ...], dtype: torch.dtype, encoding: dict[str, object]) -> Part:
    return Part(path, shape, str(dtype).removeprefix("torch."), **encoding)  # type: ignore[arg-type]


def _coded(part: Part, coder: str | None) -> Part:
    if coder == "zstd":
        return replace(part, coder="zstd")
    small = part.kind == "bits" and part.bits <= _SMALL_ALPHABET
    return replace(part, coder="entropy") if coder == "entropy" and small else part
