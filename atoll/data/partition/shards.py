"""Shards of the rows sorted by class."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from atoll.data.partition import assign
from atoll.data.partition.partition import Partition
from atoll.rng import host


@dataclass(frozen=True)
class Shards:
    """Rows sorted by class, cut into equal shards, `per_client` shards at random for each client.

    McMahan et al. (2017), https://arxiv.org/abs/1602.05629: 100 clients with 2 shards of 300 images each.
    """

    clients: Annotated[int, Field(ge=1)]
    per_client: Annotated[int, Field(ge=1)] = 2

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        classes = assign.classes_of(labels, "shards")
        shards = self.clients * self.per_client
        assign.check_enough_rows(self.clients, self.per_client, examples)
        holder = host.permutation(host.fold(key, 0), shards) // self.per_client
        owner = np.empty(examples, np.int64)
        owner[np.argsort(classes, kind="stable")] = np.repeat(holder, assign.even_sizes(examples, shards))
        return assign.partition_by_owner(owner, self.clients, host.fold(key, 1), repr(self))
