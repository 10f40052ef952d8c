"""Size laws: how many rows each client gets; which ones is chance, so there is no label skew."""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from atoll.data.partition import assign
from atoll.data.partition.partition import Partition
from atoll.errors import PartitionError
from atoll.rng import host

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class FixedPoints:
    """The same number of random rows for every client; what remains is left out.

    Granqvist et al. (pfl-research, 2024), https://arxiv.org/abs/2404.06430: 1,000 users with 50 images each.
    """

    clients: Annotated[int, Field(ge=1)]
    points: Annotated[int, Field(ge=1)]

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        assign.check_enough_rows(self.clients, self.points, examples)
        return assign.random_partition(np.full(self.clients, self.points), examples, key, repr(self))


@dataclass(frozen=True)
class PowerLaw:
    """Sizes that fall with the rank, n ~ rank^-exponent, rows at random: a few large clients, many small ones.

    Everybody gets `minimum` rows, the rest is shared in proportion to rank^-exponent; ranks are given out at random.
    Li et al. (FedProx, 2020), https://arxiv.org/abs/1812.06127, and FedML's MNIST (1,000 clients) have sizes of this
    kind with two classes each: compose it with `classes`.
    """

    clients: Annotated[int, Field(ge=1)]
    exponent: Annotated[float, Field(ge=0)] = 1.0
    minimum: Annotated[int, Field(ge=1)] = 1

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        assign.check_enough_rows(self.clients, self.minimum, examples)
        rank = 1.0 + host.permutation(host.fold(key, 0), self.clients)
        return assign.random_partition(
            _above(self.minimum, -self.exponent * np.log(rank), examples), examples, key, repr(self)
        )


@dataclass(frozen=True)
class LogNormal:
    """Log-normal sizes, rows at random: n = minimum + a share in proportion to exp(sigma z), z standard normal.

    The size law of Synthetic(alpha, beta), floor(LogNormal(4, 2)) + 50 (Li et al., FedProx, 2020; LEAF), for data of a
    given size: the location cancels, all rows are used.
    """

    clients: Annotated[int, Field(ge=1)]
    sigma: Annotated[float, Field(ge=0)] = 2.0
    minimum: Annotated[int, Field(ge=1)] = 1

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        assign.check_enough_rows(self.clients, self.minimum, examples)
        logs = self.sigma * host.normal(host.fold(key, 0), self.clients)
        return assign.random_partition(_above(self.minimum, logs, examples), examples, key, repr(self))


@dataclass(frozen=True)
class PoissonLengths:
    """Sizes from Poisson(mean), rows at random, client after client until the rows run out.

    Granqvist et al. (pfl-research, 2024), https://arxiv.org/abs/2404.06430, for Stanford Alpaca: mean 16. The last
    client takes what is left. A length of 0 is drawn again. With `clients`, exactly so many, and the rest of the rows
    is left out.
    """

    mean: Annotated[float, Field(gt=0)]
    clients: Annotated[int, Field(ge=1)] | None = None

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        return assign.random_partition(self._sizes(examples, host.fold(key, 0)), examples, key, repr(self))

    def _sizes(self, examples: int, key: Tensor) -> Ints:
        assign.check_enough_rows(self.clients or 1, 1, examples)
        if self.mean > examples:
            raise PartitionError(
                f"partition.mean: is {self.mean:g} examples for a client, and there are {examples} in all. Use less."
            )
        sizes = _poisson(key, self.mean, self.clients or examples)  # nobody has less than one row
        total = np.cumsum(sizes)
        if self.clients is None:
            last = int(np.searchsorted(total, examples))  # the one that reaches the end
            return np.append(sizes[:last], examples - total[:last][-1:].sum())
        if total[-1] > examples:
            drawn = f"{self.clients} clients of {self.mean:g} examples in the mean"
            raise PartitionError(
                f"partition.clients: {drawn} need {int(total[-1])}, and there are {examples}. "
                "Use fewer clients or a smaller mean, or leave partition.clients out."
            )
        return sizes


def _above(minimum: int, logs: Floats, examples: int) -> Ints:
    """`minimum` for everybody and the rest in shares proportional to exp(logs)."""
    rest = np.array([examples - minimum * len(logs)])
    return np.asarray(minimum + assign.counts_by_largest_remainder(assign.shares(logs)[None], rest)[0], np.int64)


def _poisson(key: Tensor, mean: float, n: int) -> Ints:
    """n numbers from Poisson(mean) given that they are above 0, by inversion."""
    highest = math.ceil(mean + 12 * math.sqrt(mean) + 40)
    k = np.arange(1, highest + 1)
    logs = k * math.log(mean) - np.cumsum(np.log(k))
    chances = np.cumsum(assign.shares(logs))
    counts = np.minimum(np.searchsorted(chances, host.uniform(key, np.arange(n)), side="right"), highest - 1) + 1
    return np.asarray(counts, np.int64)
