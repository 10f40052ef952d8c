"""A few classes for each client."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from atoll.data.partition import assign
from atoll.data.partition.partition import Partition
from atoll.errors import PartitionError
from atoll.rng import host


@dataclass(frozen=True)
class Classes:
    """Every client holds `per_client` classes ("#C = k"): class i mod K for client i, the others at random.

    The rows of a class are shared evenly among its owners. A class that nobody owns is left out (it can happen with
    few clients): `Partition.left_out` counts those rows. Li et al. (NIID-Bench, 2022), https://arxiv.org/abs/2102.02079.
    """

    clients: Annotated[int, Field(ge=1)]
    per_client: Annotated[int, Field(ge=1)]

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        classes = assign.classes_of(labels, "classes")
        K = int(classes.max()) + 1
        if self.per_client > K:
            raise PartitionError(f"partition.per_client: {self.per_client} classes of {K}. Use at most {K}.")
        assign.check_enough_rows(self.clients, 1, examples)
        owned = self._owned(K, host.fold(key, 0))
        rank = np.cumsum(owned, 1) - 1  # of a client among the owners of a class
        totals, owners = np.bincount(classes)[:, None], np.maximum(owned.sum(1, keepdims=True), 1)
        counts = np.where(owned, totals // owners + (rank < totals % owners), 0)
        owner = assign.owners_by_counts(counts, classes, host.fold(key, 1))
        return assign.partition_by_owner(owner, self.clients, host.fold(key, 2), repr(self))

    def _owned(self, K: int, key: Tensor) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """Whether class k belongs to client c: (K, N)."""
        client = np.arange(self.clients)
        luck = host.uniform(key, np.arange(self.clients * K)).reshape(self.clients, K)
        luck[client, client % K] = -1.0
        owned = np.zeros((K, self.clients), bool)
        owned[np.argsort(luck, 1)[:, : self.per_client].T, client] = True
        return owned
