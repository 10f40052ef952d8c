"""How many bytes something takes that travels as it is."""

from __future__ import annotations

from functools import lru_cache

import torch

from atoll import tree
from atoll.tree import Tree
from atoll.wire.layout import Layout

EMPTY_BYTES: int = Layout(()).fixed_bytes or 0  # of a message without tensors


def wire_bytes(values: Tree) -> int:
    """The length of a payload with these tensors, headers included.

    >>> wire_bytes({}) == EMPTY_BYTES
    True
    """
    return _fixed_bytes(tuple((path, tuple(x.shape), x.dtype) for path, x in tree.paths(values)))


@lru_cache(maxsize=256)
def _fixed_bytes(shapes: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]) -> int:
    tensors: Tree = {}
    for path, shape, dtype in shapes:
        *outer, last = path.split("/")
        inside = tensors
        for name in outer:
            inside = inside.setdefault(name, {})
        inside[last] = torch.empty(shape, dtype=dtype, device="meta")
    return Layout.of(tensors).fixed_bytes or 0
