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
        assign.enough(self.clients, 1, examples)
        owner = np.repeat(np.arange(self.clients), assign.even(examples, self.clients))
        made = f"{self!r} key={key.tolist()}"
        return assign.collect(host.permutation(key, examples), owner, self.clients, made)
