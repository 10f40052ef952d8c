"""What a payload looks like on the wire: one part for each tensor. Shapes decide it, never data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Unpack

import msgpack
import torch
from torch import Tensor

from atoll import tree
from atoll.errors import WireError
from atoll.tree import Tree
from atoll.wire.envelope import ENVELOPE, MOST_HEADER
from atoll.wire.part import DTYPES, LENGTH, TORCH, Encoding, Part
from atoll.wire.positions import code_bytes

MOST_PARTS = 1 << 14
_NAMES = {dtype: name for name, dtype in TORCH.items()}


@dataclass(frozen=True)
class Layout:
    """All parts of a payload in the order in which they travel, and the paths of empty dicts, which have none.

    >>> Layout.of({"w": torch.zeros(2, 3)}).parts
    (Part(path='w', shape=(2, 3), dtype='float32', kind='raw', bits=0, limit=0, coder='plain'),)
    """

    parts: tuple[Part, ...]
    empty: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.parts) + len(self.empty) > MOST_PARTS:
            raise WireError(f"layout: {len(self.parts)} parts. Up to {MOST_PARTS} travel in one payload: send several.")
        paths = [*(part.path for part in self.parts), *self.empty]
        _ = [Part(path, (), "bool") for path in self.empty]  # their names are checked alike
        seen = set(paths)
        inner = {path[:i] for path in paths for i, letter in enumerate(path) if letter == "/"}
        if len(seen) < len(paths) or seen & inner:
            raise WireError("layout: two parts have one path, or one lies inside another. Give every tensor its own.")

    @classmethod
    def of(cls, example: Tree, **encodings: Encoding) -> Layout:
        """Of the tensors of a tree: raw, or as `encodings` say by path or pattern, such as {"*/signs": ...}."""
        named, empty = _walk(example)
        unused = [p for p in encodings if not any(p == path or fnmatchcase(path, p) for path, _ in named)]
        if unused:
            close = get_close_matches(unused[0], [path for path, _ in named], 1)
            raise WireError(f"{unused[0]}: no tensor has this path. {f'Did you mean {close[0]!r}?' if close else ''}")
        return cls(tuple(_part(path, x, **_encoding(path, encodings)) for path, x in named), tuple(empty))

    @cached_property
    def header(self) -> bytes:
        """A stream of msgpack values: `read_header` says which."""
        values = [len(self.parts), *(part.fields() for part in self.parts), len(self.empty), *self.empty]
        data = b"".join(msgpack.packb(value) for value in values)
        if len(data) > MOST_HEADER:
            raise WireError(f"layout: its header has {len(data)} bytes, over {MOST_HEADER}. Send several payloads.")
        return data

    @property
    def measurable(self) -> bool:
        """Has its length a formula? If not, it has to be encoded (`wire.lengths` does)."""
        return all(part.coder == "plain" for part in self.parts)

    @cached_property
    def fixed_bytes(self) -> int | None:
        """The length of its payloads, headers included, where it does not depend on data."""
        return self._constant if all(part.fixed for part in self.parts) else None

    @cached_property
    def most_bytes(self) -> int:
        """No payload is longer than this."""
        prefixes = sum(LENGTH + 1 for part in self.parts if part.coder != "plain")  # and how it was stored
        return ENVELOPE.size + len(self.header) + sum(part.plain_bytes for part in self.parts) + prefixes

    @cached_property
    def _constant(self) -> int:
        fixed = sum(part.plain_bytes if part.fixed else LENGTH for part in self.parts)
        return ENVELOPE.size + len(self.header) + fixed

    def length(self, values: Tree) -> Tensor:
        """The bytes of `encode(self, values, ...)` without making them: an int64 scalar; pure torch, vmappable."""
        if not self.measurable:
            raise WireError("layout: coders have no formula for their length. Use wire.lengths, which encodes.")
        tensors = self.tensors(values)
        variable = [code_bytes(x, p.limit) for p, x in zip(self.parts, tensors, strict=True) if not p.fixed]
        if not variable:
            return torch.full((), self._constant, dtype=torch.int64, device=tree.device(values))
        return torch.stack(variable).sum() + self._constant

    def tensors(self, values: Tree) -> list[Tensor]:
        """The tensors of a tree in the order of the parts, which they must fit."""
        named = dict(_walk(values)[0])
        if named.keys() != {part.path for part in self.parts}:
            odd = sorted(named.keys() ^ {part.path for part in self.parts})
            raise WireError(f"{odd[0]}: is in only one of tree and layout. Make the layout with Layout.of(tree).")
        for part in self.parts:
            x = named[part.path]
            if tuple(x.shape) != part.shape or x.dtype != TORCH[part.dtype]:
                got = f"{tuple(x.shape)} of {x.dtype}"
                raise part.error(f"is {got}; its layout says {part.shape} of {part.dtype}. Use Layout.of(tree).")
        return [named[part.path] for part in self.parts]

    def unflatten(self, tensors: list[Tensor]) -> Tree:
        """The tree of these tensors."""
        root: Tree = {}
        leaves: list[tuple[str, Tensor | Tree]] = [*zip((p.path for p in self.parts), tensors, strict=True)]
        for path, leaf in [*leaves, *((path, {}) for path in self.empty)]:
            *outer, last = path.split("/")
            inside = root
            for name in outer:
                inside = inside.setdefault(name, {})
            inside[last] = leaf
        return root


def _part(path: str, x: Tensor, **encoding: Unpack[Encoding]) -> Part:
    if x.dtype not in _NAMES:
        raise WireError(f"{path}: {x.dtype} does not travel. Use one of {', '.join(DTYPES)}.")
    return Part(path, tuple(x.shape), _NAMES[x.dtype], **encoding)


def _encoding(path: str, encodings: dict[str, Encoding]) -> Encoding:
    """That of the path itself, else of the first pattern."""
    first = next((e for pattern, e in encodings.items() if fnmatchcase(path, pattern)), Encoding())
    return encodings.get(path, first)


def _walk(values: Tree) -> tuple[list[tuple[str, Tensor]], list[str]]:
    """Every tensor with its path; and the paths of empty dicts."""
    entries = list(_entries(values, ""))
    return [(p, x) for p, x in entries if x is not None], [p for p, x in entries if x is None]


def _entries(values: Tree, prefix: str) -> Iterator[tuple[str, Tensor | None]]:
    for name, x in values.items():
        if "/" in name:
            raise WireError(f"{prefix}{name}: a name with '/' cannot be told from a path. Use '.' instead.")
        if isinstance(x, dict) and x:
            yield from _entries(x, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", None if isinstance(x, dict) else x
