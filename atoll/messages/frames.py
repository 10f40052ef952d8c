"""Messages as bytes: a payload of `atoll.wire`, whose round is its number on the link; on a stream behind its length.

A frame is a u32 length (little-endian) and a payload. Numbers count from 1 in each direction of a link; 0 is for what
the transport itself says (its kinds begin with "atoll."), but for its last word, which has a number like any message.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.errors import WireError
from atoll.tree import Tree
from atoll.wire import Layout, encode

MOST_BYTES = 1 << 28  # of one message, unless said otherwise
MOST_NUMBER = (1 << 32) - 1  # messages on one link
RESERVED = "atoll."
LENGTH = struct.Struct("<I")
_PLAIN = {bool: torch.bool, int: torch.int64, float: torch.float64}


def encoded(kind: str, body: Tree, number: int, sender: int, layout: Layout | None, most_bytes: int) -> bytes:
    """The payload of one message."""
    if kind.startswith(RESERVED):
        raise WireError(f"{kind}: names that begin with {RESERVED!r} are the transport's. Choose another.")
    if number > MOST_NUMBER:
        raise WireError(f"{kind}: message {number} of one link. Begin anew after {MOST_NUMBER}.")
    values = tensors(body, kind)
    data = encode(layout or layout_of(values), values, kind=kind, round=number, sender=sender)
    if len(data) > most_bytes:
        raise WireError(f"{kind}: {len(data)} bytes; {most_bytes} are allowed. Raise most_bytes on both sides, or cut.")
    return data


def tensors(body: Tree, where: str) -> Tree:
    """A tree whose numbers and bools are tensors without axes.

    >>> tensors({"round": 3, "share": {"of": 0.5}}, "update")["share"]
    {'of': tensor(0.5000, dtype=torch.float64)}
    """
    return {name: _leaf(x, f"{where}/{name}") for name, x in body.items()}


def _leaf(x: Any, where: str) -> Any:
    if isinstance(x, dict):
        return tensors(x, where)
    if isinstance(x, Tensor):
        return x
    if type(x) in _PLAIN and not (type(x) is int and not -(1 << 63) <= x < 1 << 63):
        return torch.tensor(x, dtype=_PLAIN[type(x)])
    raise WireError(f"{where}: a {type(x).__name__} does not travel. Send tensors, numbers and bools, in nested dicts.")


def layout_of(values: Tree) -> Layout:
    """As they are. Made once for each shape, since its header takes longer than a small body."""
    return _layout(tuple(_shapes(values)))


def _shapes(values: Tree, prefix: str = "") -> Any:
    for name, x in values.items():
        if isinstance(x, dict) and x and "/" not in name:
            yield from _shapes(x, f"{prefix}{name}/")
        elif "/" in name:
            raise WireError(f"{prefix}{name}: a name with '/' cannot be told from a path. Use '.' instead.")
        else:
            yield (f"{prefix}{name}", None, None) if isinstance(x, dict) else (f"{prefix}{name}", x.shape, x.dtype)


@lru_cache(maxsize=512)
def _layout(shapes: tuple[Any, ...]) -> Layout:
    values: Tree = {}
    for path, shape, dtype in shapes:
        *outer, last = path.split("/")
        inside = values
        for name in outer:
            inside = inside.setdefault(name, {})
        inside[last] = {} if shape is None else torch.empty(shape, dtype=dtype, device="meta")
    return Layout.of(values)


def difference(body: Tree, like: Tree) -> str:
    """Where a body does not look as it should; "" where it does."""
    here, there = dict(tree.paths(body)), dict(tree.paths(tensors(like, "like")))
    odd = sorted(here.keys() ^ there.keys())
    if odd:
        return f"{odd[0]} {'is missing' if odd[0] in there else 'is too much'}"
    for path, x in there.items():
        if here[path].shape != x.shape or here[path].dtype != x.dtype:
            return f"{path} is {_said(here[path])} where {_said(x)} belongs"
    return ""


def _said(x: Tensor) -> str:
    return f"{tuple(x.shape)} of {x.dtype}"


def framed(data: bytes) -> bytes:
    """A payload with its length before it."""
    return LENGTH.pack(len(data)) + data


class FrameReader:
    """Cuts a stream into payloads, piece by piece as it comes; a length over `most` is refused before its bytes come.

    >>> reader = FrameReader(most=10)
    >>> reader.feed(b"\\x02\\0\\0"), reader.feed(b"\\0ab\\x01"), reader.waiting
    ([], [b'ab'], 1)
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._buffer = bytearray()

    @property
    def waiting(self) -> int:
        """Bytes of a frame that has not come to its end."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete now."""
        self._buffer += data
        payloads = []
        while len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if length > self.most:
                raise WireError(f"a frame of {length} bytes; {self.most} are allowed. Raise most_bytes on both sides.")
            if len(self._buffer) < LENGTH.size + length:
                break
            payloads.append(bytes(self._buffer[LENGTH.size : LENGTH.size + length]))
            del self._buffer[: LENGTH.size + length]
        return payloads
