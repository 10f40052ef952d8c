"""MATLAB's .mat files of version 5, as much of them as data sets use: named arrays of numbers, and structs of these.

Read here and not by scipy, whose reader can be made to crash the interpreter. Whatever else a file holds (cells,
objects, sparse or complex arrays) is stepped over where it stands by itself, and refused inside of a struct.
MathWorks, MAT-File Format: an element is a tag (type, bytes) and its data, padded to 8; arrays nest elements.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from atoll.data.formats import safe_read

Array = NDArray[Any]
Struct = dict[str, Any]  # the fields of a struct of one element: arrays and structs
_Elements = Iterator[tuple[int, memoryview]]

_HEADER = 128
_INT8, _INT32, _UINT32, _MATRIX, _COMPRESSED = 1, 5, 6, 14, 15
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_STRUCT, _COMPLEX = 2, 0x0800
_DEEPEST = 8
_ORIGINAL = "Use the original file, or save it in MATLAB with -v7"


def read_mat(path: Path, name: str) -> dict[str, Any]:
    """The arrays and structs of a file that must have one called `name`."""
    content = memoryview(safe_read.read_all(path))
    head = bytes(content[:_HEADER])
    if head[:6] != b"MATLAB" or len(head) < _HEADER:
        safe_read.refuse(path, "is no .mat file of version 5", _ORIGINAL)
    if head[:10] == b"MATLAB 7.3":
        safe_read.refuse(path, "is a .mat file of version 7.3", "Save it in MATLAB with -v7")
    order = {b"IM": "<", b"MI": ">"}.get(head[126:])
    if order is None:
        safe_read.refuse(path, "is no .mat file of version 5: its header has no byte order", "Fetch it again")
    reader = _Reader(path, order)
    arrays = dict(reader.variables(content[_HEADER:]))
    if name not in arrays:
        there = safe_read.list_names(list(arrays)) or "no arrays that can be read"
        safe_read.refuse(path, f"has no {name!r}. It has {there}", "Use the original file")
    return arrays


@dataclass(frozen=True)
class _Reader:
    path: Path
    order: str  # of bytes

    def variables(self, content: memoryview) -> Iterator[tuple[str, Any]]:
        for kind, data in self._elements(content):
            if kind == _COMPRESSED:
                unpacked = list(self._elements(self._inflated(data)))
                kind, data = unpacked[0] if unpacked else (0, data)
            if kind == _MATRIX:
                name, value = self._matrix(data, 0)
                if value is not None:
                    yield name, value

    def _inflated(self, data: memoryview) -> memoryview:
        """What was packed; memory grows with what is there, as long as there is some."""
        unpacker, content = zlib.decompressobj(), bytearray()
        try:
            left: bytes | memoryview = data
            while left and not unpacker.eof:
                content += unpacker.decompress(left, 1 << 24)
                left = unpacker.unconsumed_tail
                safe_read.check_memory(len(content), self.path)
        except zlib.error as e:
            self._damaged(f"{e}")
        if not unpacker.eof:
            self._damaged("a packed array ends early")
        return memoryview(content)

    def _elements(self, content: memoryview) -> _Elements:
        """Types and data, one after the other."""
        at = 0
        while at + 8 <= len(content):
            kind, size = struct.unpack_from(f"{self.order}II", content, at)
            if kind >> 16:  # a small one: type, size and data in 8 bytes
                kind, size, begin, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
            else:
                begin, end = at + 8, at + 8 + size
                end += 0 if kind == _COMPRESSED else -size % 8
            if size > len(content) - begin or (begin == at + 4 and size > 4):
                self._damaged(f"an array of {size:,} bytes does not fit in the rest of the file")
            yield kind, content[begin : begin + size]
            at = end

    def _matrix(self, data: memoryview, depth: int) -> tuple[str, Any]:
        """The name of an array and what it holds; None for what data sets do not use."""
        elements = self._elements(data)
        flags = self._numbers(elements, _UINT32)
        shape = tuple(self._numbers(elements, _INT32).tolist())
        name = self._text(elements)
        if not flags.size or len(shape) < 2 or min(shape) < 0:
            self._damaged("an array has no shape")
        what = int(flags[0]) & 0xFF
        if what == _STRUCT and depth < _DEEPEST:
            return name, self._struct(elements, shape, depth)
        if what not in _CLASSES or int(flags[0]) & _COMPLEX:
            return name, None
        return name, self._array(elements, shape, np.dtype(_CLASSES[what]))

    def _array(self, elements: _Elements, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Numbers by columns, which may be stored in fewer bytes than they have."""
        values = self._numbers(elements)
        if len(values) != prod(shape):
            self._damaged(f"an array of shape {shape} has {len(values):,} numbers")
        if values.dtype.kind == "f" and dtype.kind != "f":
            self._damaged(f"whole numbers are stored as {values.dtype}")
        return values.astype(dtype).reshape(shape, order="F")

    def _struct(self, elements: _Elements, shape: tuple[int, ...], depth: int) -> Struct | None:
        """Fields of one element; None for arrays of structs."""
        width = self._numbers(elements, _INT32)
        names = self._next(elements, _INT8)
        if prod(shape) != 1:
            return None
        if width.size != 1 or not 0 < width[0] <= 256 or len(names) % int(width[0]):
            self._damaged("a struct has no names of fields")
        size = int(width[0])
        fields = [_ascii(names[i : i + size]) for i in range(0, len(names), size)]
        return {name: self._matrix(self._next(elements, _MATRIX), depth + 1)[1] for name in fields}

    def _next(self, elements: _Elements, wanted: int) -> memoryview:
        kind, data = next(elements, (0, memoryview(b"")))
        if kind != wanted:
            self._damaged(f"there is an element of type {kind} in place of {wanted}")
        return data

    def _numbers(self, elements: _Elements, wanted: int | None = None) -> Array:
        kind, data = next(elements, (0, memoryview(b"")))
        if kind not in _STORED or (wanted is not None and kind != wanted):
            self._damaged(f"there is an element of type {kind} in place of numbers")
        dtype = np.dtype(self.order + _STORED[kind])
        if len(data) % dtype.itemsize:
            self._damaged(f"{len(data):,} bytes are no {dtype} numbers")
        return np.frombuffer(data, dtype)

    def _text(self, elements: _Elements) -> str:
        return _ascii(self._next(elements, _INT8))

    def _damaged(self, what: str) -> NoReturn:
        safe_read.refuse(self.path, f"is damaged, or no .mat file of version 5 ({what})", "Fetch it again")


def _ascii(data: memoryview) -> str:
    return bytes(data).partition(b"\0")[0].decode("ascii", "replace")
