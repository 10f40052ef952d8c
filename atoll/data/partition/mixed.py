"""NIID-Bench's mixture of label skew and size skew."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from atoll.data.partition import assign
from atoll.data.partition.dirichlet import above_zero
from atoll.data.partition.partition import Partition
from atoll.data.partition.redraw import redraw
from atoll.errors import PartitionError
from atoll.rng import host

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Mixed:
    """Two classes for each client, and the rows of a class shared among its owners by Dirichlet(alpha).

    Client i has class i mod K and one more; of every K clients in a row each has another second class, so that with K
    clients every class has two owners. After the "mixed" partition of NIID-Bench's code (Li et al., 2022), which takes
    exactly K clients; there the second classes are drawn one after the other, which may not come to an end.
    """

    clients: Annotated[int, Field(ge=2)]
    alpha: Annotated[float, Field(gt=0)] = 0.5
    minimum: Annotated[int, Field(ge=1)] = 1

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        classes = assign.classes_of(labels, "niid_mixed")
        totals = np.bincount(classes)
        K = len(totals)
        above_zero(self.alpha)
        if K < 2 or self.clients < K:
            raise PartitionError(
                f"partition.clients: {self.clients} clients for {K} classes of two owners each. "
                f"Use at least {max(K, 2)} clients and two classes, or partition.name = 'classes'."
            )
        assign.check_enough_rows(self.clients, self.minimum, examples)
        owned = self._owned(K, host.fold(key, 0))

        def draw(attempt: int) -> Ints:
            logs = host.log_gamma(host.fold(key, 3 + attempt), self.alpha, owned.size).reshape(owned.shape)
            return assign.counts_by_running_floor(assign.shares(np.where(owned, logs, -np.inf)), totals)

        counts = redraw(draw, self.minimum, None, f"alpha = {self.alpha}")
        owner = assign.owners_by_counts(counts, classes, host.fold(key, 1))
        return assign.partition_by_owner(owner, self.clients, host.fold(key, 2), repr(self))

    def _owned(self, K: int, key: Tensor) -> NDArray[np.bool_]:
        """Whether class k belongs to client c: (K, N)."""
        client = np.arange(self.clients)
        owned = np.zeros((K, self.clients), bool)
        owned[client % K, client] = True
        for start in range(0, self.clients, K):
            block = client[start : start + K]
            owned[_derangement(host.fold(key, start), K)[: len(block)], block] = True
        return owned


def _derangement(key: Tensor, n: int) -> Ints:
    """A permutation of 0..n-1 that leaves nothing in its place; one in e of all permutations is such."""
    for attempt in range(1000):
        order = host.permutation(host.fold(key, attempt), n)
        if (order != np.arange(n)).all():
            return order
    return np.roll(np.arange(n), 1)
