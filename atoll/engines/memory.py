"""Every client's memory: rows addressed by client id, allocated lazily, in a file once they outgrow the budget."""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from atoll import tree
from atoll.tree import Tree


class RowStore:
    """A row per client, all like `first` until written. Untouched rows cost nothing but address space."""

    def __init__(
        self, first: Tree, size: int, device: torch.device, budget: int = 4 << 30, folder: Path | None = None
    ) -> None:
        self.first, self.size, self.device = tree.to(first, device), size, device
        self.touched = torch.zeros(size, dtype=torch.bool)
        self.empty = not tree.leaves(first)
        total = size * tree.nbytes(first)
        self.on_device = device.type == "cuda" and total <= budget
        self.in_file = not self.on_device and total > budget
        self._folder: Path | None = None
        if self.in_file:
            self._folder = Path(tempfile.mkdtemp(dir=folder, prefix="memory-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._files = 0
        self.rows = tree.map(self._allocate, first)

    def read(self, ids: Tensor) -> Tree:
        """The rows of these clients, stacked."""
        if self.empty:
            return self.first
        ids = ids.cpu()
        known = self.touched[ids]
        if not known.any():
            return tree.stack(self.first, len(ids))
        stored = tree.map(lambda r: r[ids.to(r.device)].to(self.device), self.rows)
        if known.all():
            return stored  # type: ignore[no-any-return]
        fresh = known.to(self.device)
        return tree.map(  # type: ignore[no-any-return]
            lambda s, f: torch.where(fresh.reshape(-1, *[1] * f.dim()), s, f), stored, self.first
        )

    def write(self, ids: Tensor, rows: Tree) -> None:
        """Keep these rows."""
        if self.empty or not len(ids):
            return
        ids = ids.cpu()

        def put(r: Tensor, new: Tensor) -> Tensor:
            r[ids.to(r.device)] = new.to(r.device, r.dtype)
            return r

        tree.map(put, self.rows, rows)
        self.touched[ids] = True

    def state(self) -> Tree:
        """What a checkpoint must hold: the touched rows and whose they are."""
        ids = self.touched.nonzero().flatten()
        return {"ids": ids, "rows": tree.map(lambda r: r[ids.to(r.device)].cpu(), self.rows)}

    def load(self, state: Tree) -> None:
        """Go back to a checkpoint."""
        self.touched.zero_()
        self.write(state["ids"], state["rows"])

    def _allocate(self, x: Tensor) -> Tensor:
        shape = (self.size, *x.shape)
        if self.on_device:
            return torch.zeros(shape, dtype=x.dtype, device=self.device)
        if self._folder is None:
            # calloc: pages that no client touches are never made
            return torch.from_numpy(np.zeros(shape, dtype=x.cpu().numpy().dtype))
        self._files += 1
        path = self._folder / f"{self._files}.rows"
        count = math.prod(shape)
        flat: Tensor = torch.from_file(str(path), shared=True, size=count, dtype=x.dtype)
        return flat.reshape(shape)
