"""How clients are drawn where every edge draws its own: nothing is claimed of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from atoll.core import Participation


@dataclass(frozen=True)
class InGroups:
    """The named sampler says who may be asked; how many of them are in the sum of one edge differs.

    Of the accountant's schemes that is `any`: a client may be in every round.
    """

    pool: Any

    def check(self, population: int) -> None:
        self.pool.check(population)

    def sample(self, population: int, round: int, key: Tensor) -> tuple[Tensor, Participation]:
        ids, drawn = self.pool.sample(population, round, key)
        return ids, Participation("available", drawn.population)
