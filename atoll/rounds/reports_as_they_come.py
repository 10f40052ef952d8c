"""How those in a server's step were drawn, where whoever comes back first is in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from atoll.core import Participation
from atoll.errors import ConfigError


@dataclass(frozen=True)
class ReportsAsTheyCome:
    """The named sampler says who may be asked in a step; nothing is claimed of how those that come are drawn.

    Of the accountant's schemes that is `any`: a client may be in every step, and in each of them once.
    """

    pool: Any
    concurrency: int
    buffer: int | None

    def check(self, population: int) -> None:
        self.pool.check(population)
        for name, number in (("concurrency", self.concurrency), ("buffer", self.buffer)):
            if number is not None and number > population:
                raise ConfigError(
                    f"round.{name}: {number} clients, and there are {population}; nobody is at work twice, or in a "
                    f"buffer twice. Use at most {population}."
                )

    def sample(self, population: int, round: int, key: Tensor) -> tuple[Tensor, Participation]:
        ids, drawn = self.pool.sample(population, round, key)
        return ids, Participation("available", drawn.population, size=self.buffer)
