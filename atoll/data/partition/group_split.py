"""Clusters of clients: alike inside, unlike each other, or the other way round."""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from atoll.data.partition import assign
from atoll.data.partition.dirichlet import above_zero
from atoll.data.partition.partition import Partition
from atoll.data.partition.redraw import Short, redraw
from atoll.errors import PartitionError
from atoll.rng import host

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """Two levels of label skew: classes shared among groups by Dirichlet(alpha), inside a group by Dirichlet(within).

    The clients are cut into `groups` groups of nearly one size, in order: `Partition.groups` says which. Class k is
    shared among groups by p_k ~ Dir(alpha), and what a group has of it among its clients by a draw from Dir(within):
    a large `within` is a group of clients alike. `minimum` and `short` as for dirichlet. For hierarchical and
    clustered federated learning.
    """

    clients: Annotated[int, Field(ge=1)]
    groups: Annotated[int, Field(ge=1)]
    alpha: Annotated[float, Field(gt=0)] = 0.5
    within: Annotated[float, Field(gt=0)] = 10.0
    minimum: Annotated[int, Field(ge=1)] = 2
    short: Short = "redraw"

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        classes = assign.classes_of(labels, "groups")
        if self.groups > self.clients:
            raise PartitionError(
                f"partition.groups: {self.groups} groups of {self.clients} clients. Use at most {self.clients}."
            )
        above_zero(min(self.alpha, self.within))
        assign.check_enough_rows(self.clients, self.minimum, examples)
        totals, members = np.bincount(classes), assign.even_sizes(self.clients, self.groups)
        wish = f"alpha = {self.alpha}, within = {self.within}"
        counts = redraw(lambda i: self._draw(totals, members, host.fold(key, 3 + i)), self.minimum, self.short, wish)
        owner = assign.owners_by_counts(counts, classes, host.fold(key, 0))
        owner = assign.borrow_rows(owner, self.clients, self.minimum, host.fold(key, 1))
        partition = assign.partition_by_owner(owner, self.clients, host.fold(key, 2), repr(self))
        return replace(partition, groups=torch.from_numpy(np.repeat(np.arange(self.groups), members)))

    def _draw(self, totals: Ints, members: Ints, key: Tensor) -> Ints:
        """How many rows of each class each client gets, (K, N)."""
        K = len(totals)
        shares = host.dirichlet(host.fold(key, 0), self.alpha, (K, self.groups))
        each = assign.counts_by_largest_remainder(shares, totals)
        logs = host.log_gamma(host.fold(key, 1), self.within, K * self.clients).reshape(K, self.clients)
        parts = np.split(logs, np.cumsum(members)[:-1], axis=1)
        within = [assign.counts_by_largest_remainder(assign.shares(p), each[:, g]) for g, p in enumerate(parts)]
        return np.concatenate(within, axis=1)
