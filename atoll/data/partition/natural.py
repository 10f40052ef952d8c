"""The clients that the data itself knows."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from atoll.data.partition import assign
from atoll.data.partition.partition import Partition
from atoll.errors import PartitionError
from atoll.rng import host

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Natural:
    """Clients by a natural key of the data: documents, users, sites.

    `by` may be left out where the data has one key. Clients below `minimum` rows are merged, neighbour with neighbour,
    until they reach it (`small = "merge"`), or left out (`"drop"`), or not accepted (`"refuse"`). Rows keep the order
    of the data. With `clients`, those that are then there are dealt at random into so many, as NIID-Bench does with
    the writers of FEMNIST.
    """

    by: str | None = None
    minimum: Annotated[int, Field(ge=1)] = 1
    small: Literal["merge", "drop", "refuse"] = "merge"
    clients: Annotated[int, Field(ge=1)] | None = None

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        number = np.unique(self._column(keys).numpy(), return_inverse=True)[1]
        sizes = np.bincount(number)
        client = self._clients(sizes)
        rows, clients = np.arange(examples), int(client.max()) + 1
        if clients == 0:
            raise PartitionError(f"partition.minimum: no client has {self.minimum} examples. {_largest(sizes)}")
        if self.clients is None:
            return assign.partition_of_rows(rows, client[number], clients, repr(self))
        dealt = np.append(self._dealt(clients, key), -1)  # the last: nobody stays nobody
        return assign.partition_of_rows(rows, dealt[client[number]], self.clients, f"{self!r} key={key.tolist()}")

    def _dealt(self, natural_clients: int, key: Tensor) -> Ints:
        """Which of the clients that are wanted each natural client goes to."""
        wanted = self.clients or natural_clients
        if wanted > natural_clients:
            raise PartitionError(
                f"partition.clients: {wanted} clients of {natural_clients} natural ones. Use at most {natural_clients}."
            )
        owner = np.empty(natural_clients, np.int64)
        owner[host.permutation(key, natural_clients)] = np.repeat(
            np.arange(wanted), assign.even_sizes(natural_clients, wanted)
        )
        return owner

    def _column(self, keys: dict[str, Tensor]) -> Tensor:
        names = ", ".join(map(repr, sorted(keys)))
        if not keys:
            raise PartitionError(
                "partition.name = 'natural': this data has no natural clients. Use 'iid' or 'dirichlet'."
            )
        if self.by is None and len(keys) > 1:
            raise PartitionError(f"partition.by: say which key to use. This data has {names}.")
        name = self.by if self.by is not None else next(iter(keys))
        if name not in keys:
            raise PartitionError(f"partition.by: there is no key {name!r}. This data has {names}.")
        return keys[name]

    def _clients(self, sizes: Ints) -> Ints:
        """The client that each natural client becomes; -1 for those left out."""
        small = sizes < self.minimum
        if self.small == "refuse" and small.any():
            first = int(np.flatnonzero(small)[0])
            raise PartitionError(
                f"partition.minimum: {int(small.sum())} natural clients have fewer than {self.minimum} examples, "
                f"the first is {first} with {sizes[first]}. Use partition.small = 'merge' or 'drop'."
            )
        client = np.where(small, -1, np.cumsum(~small) - 1)
        if self.small == "merge" and small.any():
            client[small] = int((~small).sum()) + self._merged(sizes[small], bool((~small).any()))
        return client

    def _merged(self, sizes: Ints, others: bool) -> Ints:
        """Neighbours in groups of at least `minimum` rows; what remains joins the group before (-1: a large client)."""
        before = np.cumsum(sizes) - sizes
        starts = [0]
        while (end := int(np.searchsorted(before, before[starts[-1]] + self.minimum))) < len(sizes):
            starts.append(end)
        if int(sizes[starts[-1] :].sum()) < self.minimum:
            starts.pop()
        if not starts and not others:
            raise PartitionError(
                f"partition.minimum: the data has fewer than {self.minimum} rows. Use a smaller minimum."
            )
        return np.searchsorted(np.asarray(starts, np.int64), np.arange(len(sizes)), side="right") - 1


def _largest(sizes: Ints) -> str:
    return f"The largest has {sizes.max()}: use at most that."
