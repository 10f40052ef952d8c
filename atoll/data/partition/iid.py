"""Rows dealt at random."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from atoll.data.partition import assign
from atoll.data.partition.partition import Partition
from atoll.rng import host


@dataclass(frozen=True)
class Iid:
    """Rows dealt at random in equal parts (sizes differ by one at most)."""

    clients: Annotated[int, Field(ge=1)]

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        assign.check_enough_rows(self.clients, 1, examples)
        owner = np.repeat(np.arange(self.clients), assign.even_sizes(examples, self.clients))
        provenance = f"{self!r} key={key.tolist()}"
        return assign.partition_of_rows(host.permutation(key, examples), owner, self.clients, provenance)
