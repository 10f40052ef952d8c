"""What clients keep between rounds: rows by client id, made lazily, in a file once they outgrow the budget."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from atoll import tree
from atoll.engines.row_file import RowFile, RowLayout
from atoll.tree import Tree

_PIECE = 8 << 20  # bytes of rows that a checkpoint holds at a time


class ClientStore(Protocol):
    """Every client's state, addressed by client id. Only engines touch it."""

    @property
    def layout(self) -> RowLayout:
        """How a row lies in a checkpoint."""
        ...

    def read(self, ids: Tensor) -> Tree:
        """The rows of these clients, stacked."""
        ...

    def write(self, ids: Tensor, rows: Tree) -> None:
        """Keep these rows."""
        ...


class RowStore:
    """A row per client, all like `first` until written. Untouched rows cost nothing but address space.

    On the GPU while all rows fit in `budget` bytes there, on the host while they fit in it there, else in a sparse file
    in `folder`. Nothing is allocated before the first row is written.
    """

    def __init__(
        self, first: Tree, size: int, device: torch.device, budget: int = 4 << 30, folder: Path | None = None
    ) -> None:
        self.first, self.size, self.device = tree.to(first, device), size, device
        self.layout = RowLayout(first)
        self.touched = torch.zeros(size, dtype=torch.bool)
        self.empty = not tree.leaves(first)
        total = size * tree.nbytes(first)
        self.on_device = device.type == "cuda" and total <= budget
        self.in_file = not self.on_device and total > budget
        self.folder = folder or Path(tempfile.gettempdir())
        self.file: RowFile | None = None
        self.rows: Tree | None = None

    def read(self, ids: Tensor) -> Tree:
        """The rows of these clients, stacked."""
        if self.empty:
            return self.first
        ids = ids.cpu()
        known = self.touched[ids]
        if not known.any():
            return tree.stack(self.first, len(ids))
        stored = tree.to(self._stored(ids), self.device)
        if known.all():
            return stored
        fresh = known.to(self.device)
        return tree.map(  # type: ignore[no-any-return]
            lambda s, f: torch.where(fresh.reshape(-1, *[1] * f.dim()), s, f), stored, self.first
        )

    def write(self, ids: Tensor, rows: Tree) -> None:
        """Keep these rows."""
        if self.empty or not len(ids):
            return
        ids = ids.cpu()
        if self.in_file:
            self.file = self.file or RowFile(self.layout, self.size, self.folder)
            self.file.write(ids, rows)
        else:
            self.rows = self.rows or tree.map(self._allocate, self.first)
            at = self._index(ids)
            tree.map(lambda r, new: _put(r, at, new), self.rows, rows)
        self.touched[ids] = True

    def ids(self) -> Tensor:
        """The clients whose rows were written, in order."""
        return torch.from_numpy(np.flatnonzero(self.touched.numpy()))

    def pieces(self) -> Iterator[tuple[Tensor, Tree]]:
        """What a checkpoint must hold, a bounded part of it at a time: ids, in order, and their rows on the host."""
        ids = self.ids()
        for some in torch.split(ids, self.layout.fitting(_PIECE)):  # type: ignore[no-untyped-call]
            if len(some):
                yield some, tree.to(self._stored(some), "cpu")

    def load(self, pieces: Iterable[tuple[Tensor, Tree]]) -> None:
        """Go back to a checkpoint."""
        self.touched.zero_()
        for ids, rows in pieces:
            self.write(ids, rows)

    def _stored(self, ids: Tensor) -> Tree:
        if self.file is not None:
            return self.file.read(ids)
        at = self._index(ids)
        return tree.map(lambda r: r[at], self.rows)  # type: ignore[no-any-return]

    def _index(self, ids: Tensor) -> Tensor | slice:
        """Where their rows are. The host does not wait for the device; clients in a row need no gathering there."""
        if not self.on_device:
            return ids
        first, last = int(ids[0]), int(ids[-1])
        if last - first == len(ids) - 1 and torch.equal(ids, torch.arange(first, last + 1)):
            return slice(first, last + 1)
        return ids.to(self.device, non_blocking=True)

    def _allocate(self, x: Tensor) -> Tensor:
        shape = (self.size, *x.shape)
        if self.on_device:
            return torch.zeros(shape, dtype=x.dtype, device=self.device)
        if not x.numel():  # no bytes that could be looked at as numbers
            return torch.zeros(shape, dtype=x.dtype)
        # calloc: pages that no client touches are never made
        flat = torch.from_numpy(np.zeros(self.size * x.numel() * x.element_size(), np.uint8))
        return flat.view(x.dtype).reshape(shape)


@dataclass(frozen=True)
class Kept:
    """Rows that are all on the host: what a checkpoint of many ranks holds. Read like a store's."""

    held: Tensor
    rows: Tree
    layout: RowLayout

    def ids(self) -> Tensor:
        """Whose they are."""
        return self.held

    def pieces(self) -> Iterator[tuple[Tensor, Tree]]:
        """As of a store."""
        if len(self.held):
            yield self.held, self.rows


def join_pieces(pieces: Iterable[tuple[Tensor, Tree]], layout: RowLayout) -> Tree:
    """Pieces of a checkpoint as one: {"ids", "rows"}."""
    parts = [(ids.clone(), tree.map(torch.clone, rows)) for ids, rows in pieces]
    none = tree.map(lambda x: x[None][:0].cpu(), layout.first)
    ids = torch.cat([torch.zeros(0, dtype=torch.int64), *(p[0] for p in parts)])
    return {"ids": ids, "rows": tree.cat([none, *(p[1] for p in parts)])}


def _put(r: Tensor, at: Tensor | slice, new: Tensor) -> Tensor:
    r[at] = new.to(r.device, r.dtype)
    return r
