"""How those in a server's step were drawn, where whoever comes back first is in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from atoll import rng
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
        asked = self.pool.sample(population, 0, rng.key("check"))[1].size
        if asked is not None and self.buffer is not None and self.buffer > asked:
            raise ConfigError(
                f"round.buffer: {self.buffer} reports, and the cohort has {asked} clients to ask in a step, each once: "
                f"the buffer would never be full. Use at most {asked}, or a larger cohort."
            )

    def sample(self, population: int, round: int, key: Tensor) -> tuple[Tensor, Participation]:
        ids, drawn = self.pool.sample(population, round, key)
        return ids, Participation("available", drawn.population, size=self.buffer)
