"""Rows of bytes: how a client's memory lies in a file, and the file it lies in once it outgrows its budget."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import weakref
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import tree
from atoll.errors import TrainingError
from atoll.tree import Tree

_GRAIN = 16  # bytes: every leaf begins at a multiple, so that numbers of any type can be read in place
_BLOCK = 8 << 20  # bytes of rows that are packed or read at a time
_ROWS = 512  # read at a time: each brings up to 64 kB of its neighbours into view


class RowLayout:
    """Where each leaf of a row lies: one after the other, `width` bytes in all.

    >>> rows = {"w": torch.tensor([[1.0, 2.0]]), "n": torch.tensor([7])}
    >>> layout = RowLayout(tree.rows(rows, 0))
    >>> layout.width, layout.views(layout.pack(rows))["w"].tolist()
    (32, [[1.0, 2.0]])
    """

    def __init__(self, first: Tree) -> None:
        self.first = first
        self.starts: list[int] = []
        self.width = 0
        for x in tree.leaves(first):
            self.starts.append(self.width)
            self.width += -(-x.numel() * x.element_size() // _GRAIN) * _GRAIN
        self.mark = ", ".join(f"{p} {tuple(x.shape)} {x.dtype}" for p, x in tree.paths(first))

    def fitting(self, limit: int) -> int:
        """How many rows take up to so many bytes; one at least."""
        return max(1, limit // max(1, self.width))

    def pack(self, rows: Tree) -> NDArray[np.uint8]:
        """Stacked rows as bytes, (n, width)."""
        out = np.zeros((len(tree.leaves(rows)[0]), self.width), np.uint8)
        tree.map(lambda to, x: to.copy_(x.detach()), self.views(out), rows)
        return out

    def views(self, packed: NDArray[np.uint8]) -> Tree:
        """Packed rows, read in place: a leaf (n, ...) for each leaf of a row."""
        flat = torch.from_numpy(packed).reshape(-1)
        starts = iter(self.starts)
        return tree.map(lambda x: self._view(flat, x, next(starts)), self.first)  # type: ignore[no-any-return]

    def _view(self, flat: Tensor, like: Tensor, start: int) -> Tensor:
        size = like.element_size()
        inner = [math.prod(like.shape[i + 1 :]) for i in range(like.dim())]
        shape, strides = (len(flat) // self.width, *like.shape), (self.width // size, *inner)
        return flat.view(like.dtype).as_strided(shape, strides, start // size)


class RowFile:
    """Rows in a sparse file without a name: it takes the room of the rows that were written, and goes with the process.

    Rows are read through a memory map and written with `pwrite` (both see the same pages): a full disk is then an
    error with a message. Through the map it would be a SIGBUS, which nobody can catch.
    """

    def __init__(self, layout: RowLayout, size: int, folder: Path) -> None:
        self.layout, self.folder, self.total = layout, folder, size * layout.width
        try:
            self._file, name = tempfile.mkstemp(dir=folder, prefix=".memory.", suffix=".draft")
            weakref.finalize(self, os.close, self._file)
            Path(name).unlink()
            os.ftruncate(self._file, self.total)
            self._map = mmap.mmap(self._file, self.total)
        except OSError as e:
            raise self._failed(e) from e
        self._rows = np.frombuffer(self._map, np.uint8).reshape(size, layout.width)

    def read(self, ids: Tensor) -> Tree:
        """Copies of these rows, stacked. Pages are let go of as we go, so that resident memory stays flat."""
        rows = tree.map(lambda x: torch.empty((len(ids), *x.shape), dtype=x.dtype), self.layout.first)
        step = min(_ROWS, self.layout.fitting(_BLOCK))
        for at in range(0, len(ids), step):
            block = self.layout.views(self._rows[ids[at : at + step].numpy()])
            tree.map(lambda to, x, at=at: to[at : at + step].copy_(x), rows, block)
            self._map.madvise(mmap.MADV_DONTNEED)  # of a shared file: what is in it stays
        return rows  # type: ignore[no-any-return]

    def write(self, ids: Tensor, rows: Tree) -> None:
        """Keep these rows."""
        step = self.layout.fitting(_BLOCK)
        for at in range(0, len(ids), step):
            block = self.layout.pack(tree.rows(rows, slice(at, at + step)))
            for i, row in zip(ids[at : at + step].tolist(), block, strict=True):
                self._put(row.data, i * self.layout.width)

    def allocated(self) -> int:
        """The bytes that the file takes on the disk."""
        return os.fstat(self._file).st_blocks * 512

    def _put(self, row: memoryview, at: int) -> None:
        try:
            done = os.pwrite(self._file, row, at)
            while done < len(row):  # what is left, or the reason why it does not fit
                done += os.pwrite(self._file, row[done:], at + done)
        except OSError as e:
            raise self._failed(e) from e

    def _failed(self, e: OSError) -> TrainingError:
        return TrainingError(
            f"engine.spill: the clients' memory could not be written to {self.folder} ({e.strerror}); it may grow to "
            f"{self.total / 1e9:,.1f} GB there. Free some space and go on with --resume, or begin again with "
            "engine.spill = a folder on another disk, or a larger engine.memory_gb."
        )
