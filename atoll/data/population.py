"""The population of clients, and which examples those of a cohort see, step by step."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.core import Cohort
from atoll.data import batch_sampling
from atoll.data.batch_sampling import Sampling
from atoll.data.partition import Partition
from atoll.errors import ConfigError, DataError
from atoll.rng import host

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Population:
    """All clients, and how they read their rows: `epochs` times, in batches of `batch`, the last one partial.

    The same batches as a PyTorch DataLoader per client with drop_last=False: every epoch is a new order, cut in
    batches; a batch never crosses an epoch. `batch=0`: the whole client at once; `max_steps` ends a round early.
    `sampling` "poisson" and "fixed" draw every batch anew (`data/batches.py`), in as many steps.
    Client c's order in epoch e is addressed by (key, e, c): cohort order and chunks cannot change it.

    >>> from atoll import rng
    >>> p = Population(Partition.from_lists([[0, 1, 2], [3]]), batch=2, shuffle=False)
    >>> cohort = p.cohort(torch.tensor([1, 0]), rng.key(0))
    >>> cohort.plan.tolist(), cohort.count.tolist()
    ([[[3, 3], [3, 3]], [[0, 1], [2, 0]]], [[1, 0], [2, 1]])
    """

    partition: Partition
    batch: int
    epochs: int = 1
    shuffle: bool = True
    max_steps: int | None = None
    sampling: Sampling = "shuffled"
    replaced: Tensor | None = None  # a second table: rows in the places of `partition.indices`, int64

    def __post_init__(self) -> None:
        if self.batch < 0:
            raise ConfigError(f"batch: must be 1 or more, or 0 for the whole client (got {self.batch}).")
        if self.epochs < 1:
            raise ConfigError(f"epochs: must be 1 or more (got {self.epochs}). For part of an epoch use max_steps.")
        if self.max_steps is not None and self.max_steps < 1:
            raise ConfigError(f"max_steps: must be 1 or more (got {self.max_steps}). For no limit leave it out.")

    @property
    def size(self) -> int:
        return self.partition.size

    @cached_property
    def sizes(self) -> Tensor:
        """The examples of each client, (N,)."""
        return self.partition.sizes

    def steps(self, ids: Tensor) -> Tensor:
        """The steps that each of these clients takes in a round, (C,)."""
        return torch.from_numpy(self._steps(self._rows(ids)[1])[1])

    def cohort(self, ids: Tensor, key: Tensor, table: int = 0) -> Cohort:
        """The round's work of these clients. An id that comes twice gets the same rows twice.

        With `table` = 1 they read the second table of rows: the same places, steps and order, perhaps other rows.
        """
        start, sizes = self._rows(ids)
        each, steps = self._steps(sizes)
        if self.sampling != "shuffled":
            return self._drawn(ids, start, sizes, steps, key, table)
        S, B = int(steps.max(initial=0)), self._width or max(1, int(sizes.max(initial=0)))
        plan = self._plan(ids, start, sizes, each, steps, S, B, key, table)
        step = np.arange(S)
        left = sizes[:, None] - step % np.maximum(each, 1)[:, None] * B
        count = np.where(step < steps[:, None], np.minimum(left, B), 0)
        columns = sizes.astype(np.float32), steps, plan, count
        return Cohort(ids, *map(torch.from_numpy, columns))

    def places(self, rows: int) -> Tensor:
        """(rows,) of every row of the data its place among those of the client that holds it; 0 where nobody does.

        >>> Population(Partition.from_lists([[4, 1], [2]]), batch=2).places(5).tolist()
        [0, 1, 0, 0, 0]
        """
        indices = self.partition.indices
        if len(np.unique(indices.numpy())) < len(indices):
            raise ConfigError(
                "partition: some examples are held by two clients, or twice by one, and this algorithm tells a "
                "client's examples apart. Use a partition in which each has one holder, such as 'dirichlet'."
            )
        place = torch.from_numpy(host.group_positions(self.sizes.numpy())[1])
        places = torch.zeros(rows, dtype=torch.int64).index_copy(0, indices, place)
        return places if self.replaced is None else places.index_copy(0, self.replaced, place)

    @cached_property
    def _columns(self) -> tuple[Ints, Ints]:
        """Offsets and rows as numpy; one row at least, so that padding has something to point at."""
        indices = self.partition.indices.numpy()
        return self.partition.offsets.numpy(), indices if len(indices) else np.zeros(1, np.int64)

    def _row_table(self, table: int) -> Ints:
        if not table:
            return self._columns[1]
        assert self.replaced is not None, "a population without a second table was asked for it"
        return self.replaced.numpy()

    @cached_property
    def _width(self) -> int:
        """The rows of a batch: no client fills more than the largest client has. 0 if that depends on the cohort."""
        return min(self.batch, self._largest)

    @cached_property
    def _largest(self) -> int:
        return max(1, int(self.sizes.max()))

    def _rows(self, ids: Tensor) -> tuple[Ints, Ints]:
        """Where each client's rows begin and how many there are; only the cohort is looked at."""
        who, offsets = ids.numpy(), self._columns[0]
        if len(who) and (who.min() < 0 or who.max() >= self.size):
            raise DataError(f"cohort: there are no clients {who.min()} to {who.max()}. Clients are 0..{self.size - 1}.")
        start = offsets[who]
        return start, offsets[who + 1] - start

    def _steps(self, sizes: Ints) -> tuple[Ints, Ints]:
        """The batches of one epoch, and the steps of the round."""
        each = -(-sizes // self._width) if self._width else np.minimum(sizes, 1)
        steps = each * self.epochs
        return each, steps if self.max_steps is None else np.minimum(steps, self.max_steps)

    def _plan(
        self,
        ids: Tensor,
        start: Ints,
        sizes: Ints,
        epoch_steps: Ints,
        steps: Ints,
        S: int,
        B: int,
        key: Tensor,
        table: int,
    ) -> Ints:
        """The rows of every batch, (C, S, B); padded with the client's first row."""
        rows = self._row_table(table)
        plan = np.repeat(rows[np.minimum(start, len(rows) - 1)], S * B)
        owner, position = at = host.group_positions(sizes)
        epochs = self._epochs(epoch_steps)
        place = np.arange(epochs)[:, None] * (epoch_steps * B)[owner] + position  # every epoch begins a new batch
        order = self._order(ids, sizes, at, epochs, key) if self.shuffle else np.broadcast_to(position, place.shape)
        to, order_rows = place + owner * (S * B), order + start[owner]
        if self.max_steps is not None:
            within_steps = place < (steps * B)[owner]
            to, order_rows = to[within_steps], order_rows[within_steps]
        plan[to] = rows[order_rows]
        return plan.reshape(len(sizes), S, B)

    def _drawn(self, ids: Tensor, start: Ints, sizes: Ints, steps: Ints, key: Tensor, table: int) -> Cohort:
        """Every batch drawn anew; padded with the client's first row."""
        draw = batch_sampling.poisson if self.sampling == "poisson" else batch_sampling.fixed
        largest = self._largest if self._width else max(1, int(sizes.max(initial=0)))
        place, count = draw(ids, sizes, steps, self._width or largest, largest, key)
        rows = self._row_table(table)
        plan = rows[np.minimum(start[:, None, None] + place, len(rows) - 1)]
        return Cohort(ids, *map(torch.from_numpy, (sizes.astype(np.float32), steps, plan, count)))

    def _epochs(self, epoch_steps: Ints) -> int:
        """The epochs that somebody begins."""
        if self.max_steps is None:
            return self.epochs
        return min(self.epochs, -(-self.max_steps // max(1, int(epoch_steps.min(initial=self.max_steps)))))

    def _order(self, ids: Tensor, sizes: Ints, at: tuple[Ints, Ints], epochs: int, key: Tensor) -> Ints:
        """Every client's positions in the order in which it sees them, epoch by epoch: (E, examples of the cohort)."""
        keys = torch.stack([host.fold(key, e) for e in range(epochs)])
        return host.order(keys, ids.numpy(), sizes, at)
