"""A partition of which a random half is in the run: who is in, and the partition that a file can name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from atoll import rng
from atoll.attacks.membership.loss_threshold import Level
from atoll.data import PARTITIONS, Partition
from atoll.errors import PartitionError
from atoll.experiment import build

Role = Literal["target", "shadow"]
NAME = "atoll.attacks.membership.random_half:Half"


def coins(units: int, seed: int, level: Level, role: Role, number: int) -> NDArray[np.bool_]:
    """Who is in this run: a fair coin for each unit.

    Shadows 2k and 2k + 1 are each other's complement, so that everyone is in half of them; a target has its own coins.
    """
    if role == "target":
        return _flipped(units, seed, level, role, number)
    pairs = (_flipped(units, seed, level, role, number // 2, attempt) for attempt in count())
    heads = next(h for h in pairs if h.any() and not h.all())  # a shadow without anybody teaches nothing
    return ~heads if number % 2 else heads


def _flipped(units: int, *path: int | str) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = rng.bernoulli(rng.key(*path, "coins"), 0.5, (units,)).numpy()
    return found


@dataclass(frozen=True)
class Half:
    """The training partition of another run, without the rows (level example) or the clients that its coins leave out.

    A client that is left out stays in the population with no rows: cohorts, rounds and noise are those of the run, and
    its contribution is nothing (zero-out adjacency).
    """

    of: dict[str, Any]
    seed: Annotated[int, Field(ge=0)]  # of the run: its clients, what it held out, and the coins
    level: Level
    role: Role
    number: Annotated[int, Field(ge=0)]
    holdout: Annotated[float, Field(ge=0, lt=1)] = 0.0

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        whole: Partition = build(PARTITIONS, self.of, where="partition.of")(
            labels, keys, examples, rng.key(self.seed, "partition")
        )
        if self.holdout:
            whole = whole.split(self.holdout, rng.key(self.seed, "holdout"))[0]
        return self.half(whole, examples)

    def half(self, whole: Partition, examples: int) -> Partition:
        """What is left of the run's training partition."""
        if whole.noise is not None:
            raise PartitionError(
                "partition: feature noise is drawn anew in every run, so no example would be the same in two of them. "
                "Use --attack loss."
            )
        units = examples if self.level == "example" else whole.size
        inside = torch.from_numpy(coins(units, self.seed, self.level, self.role, self.number))
        kept = inside[whole.indices if self.level == "example" else whole.owners()]
        sizes = torch.bincount(whole.owners()[kept], minlength=whole.size)
        return replace(
            whole,
            offsets=torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
            indices=whole.indices[kept],
            provenance=f"{whole.provenance} half({self.level}, {self.role} {self.number}, seed {self.seed})",
            left_out=whole.left_out + int((~kept).sum()),
        )
