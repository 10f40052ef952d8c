"""FCUBE's four parties."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from atoll.data.partition import assign
from atoll.data.partition.partition import Partition
from atoll.errors import PartitionError
from atoll.rng import host

PARTIES = 4


@dataclass(frozen=True)
class FCube:
    """Four parties with two octants of the cube each that mirror each other at the origin: feature skew, even labels.

    The data must have a key "octant", 0..7, one bit for the sign of each coordinate; octants o and 7 - o mirror each
    other. With 4 m clients the rows of a party are dealt at random among m. Li et al. (NIID-Bench, 2022),
    https://arxiv.org/abs/2102.02079.
    """

    clients: Annotated[int, Field(ge=PARTIES)] = PARTIES

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        if "octant" not in keys:
            raise PartitionError(
                "partition.name = 'fcube': this data has no key 'octant'. "
                "Use data.name = 'fcube', or 'noise' for feature skew."
            )
        if self.clients % PARTIES:
            near = max(1, self.clients // PARTIES) * PARTIES
            raise PartitionError(f"partition.clients: must be a multiple of 4 (got {self.clients}). Use {near}.")
        octant = keys["octant"].numpy()
        party = np.minimum(octant, 7 - octant)
        each = self.clients // PARTIES
        shares = assign.even_sizes(np.bincount(party, minlength=PARTIES), each)  # (parties, clients of each)
        counts = np.zeros((PARTIES, self.clients), np.int64)
        for p in range(PARTIES):
            counts[p, p * each : (p + 1) * each] = shares[p]
        owner = assign.owners_by_counts(counts, party, host.fold(key, 0))
        return assign.partition_by_owner(owner, self.clients, host.fold(key, 1), repr(self))
