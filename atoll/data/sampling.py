"""Cohort sampling: who takes part in a round (participation), and how that was drawn.

A sampler is given the RUN's cohort key and the round, and folds them itself: a round has the same cohort after a
resume, and a scheme may rest on something that is fixed for the run. It says how it really drew (`Participation`):
what a privacy accountant may rely on. Cost grows with the cohort, not with the population.

>>> from atoll import rng
>>> ids, how = Fixed(size=3).sample(10, 0, rng.key(0))
>>> len(ids), how.size
(3, 3)
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from atoll.core import Participation
from atoll.errors import ConfigError
from atoll.rng import host


class Sampler(Protocol):
    """What every entry of SAMPLERS builds."""

    def check(self, population: int) -> None:
        """Refuse (ConfigError) what cannot be drawn from this many clients."""
        ...

    def sample(self, population: int, round: int, key: Tensor) -> tuple[Tensor, Participation]:
        """The clients of this round, (C,) int64, and how they were drawn; `key` is the run's."""
        ...


@dataclass(frozen=True)
class Everyone:
    """Every client, every round."""

    def check(self, population: int) -> None:
        pass

    def sample(self, population: int, round: int, key: Tensor) -> tuple[Tensor, Participation]:
        return torch.arange(population), Participation("everyone", population, size=population)


@dataclass(frozen=True)
class Fixed:
    """A fixed number of different clients, uniformly at random."""

    size: Annotated[int, Field(ge=1)]

    def check(self, population: int) -> None:
        _fits(self.size, population)

    def sample(self, population: int, round: int, key: Tensor) -> tuple[Tensor, Participation]:
        ids = _different(key, round, population, self.size)
        return ids, Participation("fixed", population, size=self.size)


@dataclass(frozen=True)
class FixedWithReplacement:
    """A fixed number of draws, each uniform over all clients: one may come twice."""

    size: Annotated[int, Field(ge=1, le=10**7)]

    def check(self, population: int) -> None:
        pass

    def sample(self, population: int, round: int, key: Tensor) -> tuple[Tensor, Participation]:
        words = host.stream(host.fold(key, round), np.arange(self.size))
        ids = torch.from_numpy((words % np.uint64(population)).astype(np.int64))
        return ids, Participation("fixed_with_replacement", population, size=self.size, replacement=True)


@dataclass(frozen=True)
class Fraction:
    """A fixed share of the clients (at least one), uniformly at random."""

    share: Annotated[float, Field(gt=0, le=1)]

    def check(self, population: int) -> None:
        _share("share", self.share)

    def sample(self, population: int, round: int, key: Tensor) -> tuple[Tensor, Participation]:
        size = self._size(population)
        ids = _different(key, round, population, size)
        return ids, Participation("fraction", population, size=size)

    def _size(self, population: int) -> int:
        return max(1, round(self.share * population))


@dataclass(frozen=True)
class Poisson:
    """Every client on its own with the same probability; the cohort varies and may be empty.

    Give `probability`, or `size` for the expected cohort. What subsampling amplification usually assumes.
    """

    probability: Annotated[float, Field(gt=0, le=1)] | None = None
    size: Annotated[float, Field(gt=0)] | None = None

    def check(self, population: int) -> None:
        if (self.probability is None) == (self.size is None):
            raise ConfigError("cohort: poisson needs one of probability and size (the expected cohort), not both.")
        if self.size is not None:
            _fits(self.size, population)
        _share("probability", self._rate(population))

    def sample(self, population: int, round: int, key: Tensor) -> tuple[Tensor, Participation]:
        rate = self._rate(population)
        ids = _bernoulli(rate, population, host.fold(key, round))
        return ids, Participation("poisson", population, probability=rate)

    def _rate(self, population: int) -> float:
        if self.probability is not None:
            return self.probability
        return (self.size or 0.0) / population


@dataclass(frozen=True)
class Cyclic:
    """Groups in turn: a client that took part waits at least `min_separation` rounds for its next turn.

    A random order, fixed for the run, deals the clients into `min_separation` groups; round r draws `size` different
    clients of group r mod min_separation. What banded matrix factorisation assumes (Choquette-Choo et al., 2023).
    """

    size: Annotated[int, Field(ge=1)]
    min_separation: Annotated[int, Field(ge=1)]

    def check(self, population: int) -> None:
        _groups_fit(self.size, self.min_separation, population)

    def sample(self, population: int, round: int, key: Tensor) -> tuple[Tensor, Participation]:
        group = _group(key, round, population, self.min_separation)
        chosen = _different(key, round, len(group), self.size)
        how = Participation("cyclic", population, size=self.size, min_separation=self.min_separation)
        return group[chosen], how


@dataclass(frozen=True)
class CyclicPoisson:
    """Groups in turn, and every client of the group on its own with the same probability: `cyclic` with coins.

    Groups as `cyclic` deals them; a client of group r mod min_separation comes to round r with probability
    size x min_separation / population, so that `size` come on average. What the amplification of banded matrix
    factorisation assumes (Choquette-Choo et al., 2023, its second algorithm).
    """

    size: Annotated[float, Field(gt=0)]
    min_separation: Annotated[int, Field(ge=1)]

    def check(self, population: int) -> None:
        _groups_fit(self.size, self.min_separation, population)

    def sample(self, population: int, round: int, key: Tensor) -> tuple[Tensor, Participation]:
        rate = self.size * self.min_separation / population  # of every client, though one group may be larger by one
        group = _group(key, round, population, self.min_separation)
        came = _bernoulli(rate, len(group), host.fold(key, round))
        how = Participation("cyclic_poisson", population, probability=rate, min_separation=self.min_separation)
        return group[came], how


def _different(key: Tensor, round: int, population: int, size: int) -> Tensor:
    return torch.from_numpy(host.distinct(host.fold(key, round), population, size))


def _bernoulli(rate: float, n: int, key: Tensor) -> Tensor:
    """The successes of n independent trials, by the gaps between them: P(gap > g) = (1 - rate)^g."""
    draw = math.ceil(n * rate + 6 * math.sqrt(n * rate)) + 16
    log_miss = math.log1p(-rate) if rate < 1 else -math.inf
    while True:
        gaps = np.minimum(np.floor(np.log(host.uniform(key, np.arange(draw))) / log_miss), n)
        ids = np.cumsum(gaps.astype(np.int64) + 1) - 1
        if ids[-1] >= n:
            return torch.from_numpy(ids[ids < n])
        draw *= 2  # a draw is addressed by its counter, so the first ones stay what they were


def _group(key: Tensor, round: int, population: int, min_separation: int) -> Tensor:
    """The clients that may come to this round."""
    return _order_of_run(*key.tolist(), population)[round % min_separation :: min_separation]


@lru_cache(maxsize=4)
def _order_of_run(k0: int, k1: int, n: int) -> Tensor:
    """All clients in an order that holds for the run; -1 is no round."""
    return torch.from_numpy(host.permutation(host.fold(torch.tensor([k0, k1]), -1), n))


def _fits(size: float, population: int) -> None:
    if size > population:
        raise ConfigError(
            f"cohort.size: {size:g} clients cannot be drawn from {population}. "
            f"Use at most {population}, or cohort.name = 'everyone'."
        )


def _groups_fit(size: float, min_separation: int, population: int) -> None:
    _fits(size, population)
    if size * min_separation > population:
        raise ConfigError(
            f"cohort.min_separation: {min_separation} groups of {size:g} need {size * min_separation:g} clients, "
            f"and there are {population}. Use min_separation at most {int(population // size)}, or a smaller size."
        )


def _share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ConfigError(f"cohort.{name}: must be above 0 and at most 1 (got {value}).")
