"""Client memory on many ranks: every row has a home, where its client trains; only checkpoints make rows travel."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from atoll import tree
from atoll.engines import Kept, RowLayout, RowStore
from atoll.engines.ranks import buffers
from atoll.engines.ranks.world import World
from atoll.tree import Tree


class ShardedStore:
    """A row for each client whose home is here, addressed by client id like the store of a run with one process."""

    empty = False

    def __init__(
        self, first: Tree, homes: Tensor, world: World, device: torch.device, budget: int, folder: Path | None = None
    ) -> None:
        self.homes, self.world = homes, world
        self.ids = (homes == world.rank).nonzero().flatten()
        self.place = torch.full_like(homes, -1)
        self.place[self.ids] = torch.arange(len(self.ids))
        self.store = RowStore(first, max(1, len(self.ids)), device, budget, folder)

    @property
    def first(self) -> Tree:
        """What a client has before it was ever here."""
        return self.store.first

    def read(self, ids: Tensor) -> Tree:
        """The rows of these clients, stacked; what strangers keep is elsewhere, so they are as at first."""
        place = self.place[ids.cpu()]
        rows, known = self.store.read(place.clamp(min=0)), place >= 0
        if known.all():
            return rows
        here = known.to(self.store.device)
        return tree.map(  # type: ignore[no-any-return]
            lambda r, f: torch.where(here.reshape(-1, *[1] * f.dim()), r, f), rows, self.first
        )

    def write(self, ids: Tensor, rows: Tree) -> None:
        """Keep these rows."""
        place = self.place[ids.cpu()]
        assert bool((place >= 0).all()), "a client was trained away from its home"
        self.store.write(place, rows)

    @property
    def layout(self) -> RowLayout:
        """How a row lies in a checkpoint."""
        return self.store.layout

    @property
    def folder(self) -> Path:
        """Where rows are spilled."""
        return self.store.folder

    @property
    def in_file(self) -> bool:
        return self.store.in_file

    def gathered(self) -> Kept:
        """Every rank's touched rows, on rank 0, as a run with one process has them; nothing on the others."""
        touched = self.ids[self.store.touched[: len(self.ids)]]
        everyone = self.world.all_gather(touched)
        if self.world.rank:
            for ids in self._pieces(touched):
                self.world.send(self._host(ids), 0)
            return Kept(touched[:0], {}, self.layout)
        ids = torch.cat(everyone).sort().values
        rows = buffers.zeros(buffers.layout(tree.map(lambda x: x[None], self.first)), rows=len(ids))
        for rank, theirs in enumerate(everyone):
            for some in self._pieces(theirs):
                values = self._host(some) if rank == 0 else self.world.receive(self._blank(len(some)), rank)
                place = torch.searchsorted(ids, some)
                tree.map(lambda to, new, place=place: to.index_copy_(0, place, new), rows, values)
        return Kept(ids, rows, self.layout)

    def scatter(self, state: Tree | None) -> None:
        """Go back to a checkpoint, {"ids", "rows"}, which rank 0 has: every row goes home."""
        ids = self.world.broadcast(None if state is None else state["ids"])
        self.store.touched.zero_()
        assert ids is not None
        for rank in range(self.world.size):
            place = (self.homes[ids] == rank).nonzero().flatten()
            for some in self._pieces(place):
                if state is not None:  # rank 0
                    rows = tree.rows(state["rows"], some)
                    self.write(ids[some], rows) if rank == 0 else self.world.send(rows, rank)
                elif rank == self.world.rank:
                    self.write(ids[some], self.world.receive(self._blank(len(some)), 0))

    def _pieces(self, ids: Tensor) -> list[Tensor]:
        """So many at a time that what is under way stays small."""
        some = max(1, buffers.PIECE // max(1, tree.nbytes(self.first)))
        return list(torch.split(ids, some)) if len(ids) else []  # type: ignore[no-untyped-call]

    def _host(self, ids: Tensor) -> Tree:
        return tree.to(self.store.read(self.place[ids]), "cpu")

    def _blank(self, n: int) -> Tree:
        return buffers.zeros(buffers.layout(tree.map(lambda x: x[None], self.first)), rows=n)  # type: ignore[no-any-return]
