"""Label skew and size skew by the Dirichlet distribution."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from atoll.data.partition import assign
from atoll.data.partition.partition import Partition
from atoll.data.partition.redraw import Profile, Short, demanded, redraw
from atoll.errors import PartitionError
from atoll.rng import host

Ints = NDArray[np.int64]
Draw = Callable[[Tensor, float, Ints, int], Ints]  # key, alpha, rows of each class, clients -> counts (K, N)


@dataclass(frozen=True)
class Dirichlet:
    """Every class is shared out by its own draw from Dirichlet(alpha): label skew, and sizes that differ.

    p_k ~ Dir(alpha, ..., alpha) over the N clients; client c gets a share p_kc of the rows of class k, rounded by the
    largest remainders, so that clients are exchangeable: no place in the list says anything about who stands there.
    Hsu, Qi, Brown (2019), https://arxiv.org/abs/1909.06335; Li et al. (NIID-Bench, 2022).

    A draw that leaves a client below `minimum` is drawn again (at most 100 times, or until it is clear that it
    will not happen); `short = "borrow"` takes the draw and moves rows from the largest clients instead.
    `profile = "niid-bench"`, as its code and FedML's: class after class, a client that already has 1/N of all rows gets
    none of the next class, the other shares are scaled up; nobody may have fewer than 10. Its floors of the running sum
    leave the last client a stray row of nearly every class.
    """

    clients: Annotated[int, Field(ge=1)]
    alpha: Annotated[float, Field(gt=0)]
    minimum: Annotated[int, Field(ge=1)] = 2
    short: Short = "redraw"
    profile: Profile = "paper"

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        classes = assign.classes_of(labels, "dirichlet")
        counts = self.counts(np.bincount(classes), key)
        owner = assign.owners_by_counts(counts, classes, host.fold(key, 0))
        owner = assign.borrow_rows(owner, self.clients, demanded(self.minimum, self.profile), host.fold(key, 1))
        return assign.partition_by_owner(owner, self.clients, host.fold(key, 2), repr(self))

    def counts(self, totals: Ints, key: Tensor) -> Ints:
        """How many rows of each class each client gets, (K, N), before anything is borrowed."""
        return _counts(self, totals, key, _capped if self.profile == "niid-bench" else _plain)


@dataclass(frozen=True)
class QuantityDirichlet:
    """Sizes by one draw from Dirichlet(alpha), rows at random: size skew without label skew.

    Li et al. (NIID-Bench, 2022), https://arxiv.org/abs/2102.02079. `minimum` and `short` as for dirichlet;
    `profile = "niid-bench"`: nobody may have fewer than 10, as in its code.
    """

    clients: Annotated[int, Field(ge=1)]
    alpha: Annotated[float, Field(gt=0)]
    minimum: Annotated[int, Field(ge=1)] = 2
    short: Short = "redraw"
    profile: Profile = "paper"

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        draw = _floored if self.profile == "niid-bench" else _plain
        counts = _counts(self, np.array([examples]), key, draw)
        owner = assign.owners_by_counts(counts, np.zeros(examples, np.int64), host.fold(key, 0))
        owner = assign.borrow_rows(owner, self.clients, demanded(self.minimum, self.profile), host.fold(key, 1))
        return assign.partition_by_owner(owner, self.clients, host.fold(key, 2), repr(self))


def above_zero(alpha: float) -> None:
    if alpha <= 0:
        raise PartitionError(
            f"partition.alpha: must be above 0 (got {alpha}). For an even split use partition.name = 'iid'."
        )


def _counts(wish: Dirichlet | QuantityDirichlet, totals: Ints, key: Tensor, how: Draw) -> Ints:
    above_zero(wish.alpha)
    least = demanded(wish.minimum, wish.profile)
    assign.check_enough_rows(wish.clients, least, int(totals.sum()))
    return redraw(
        lambda attempt: how(host.fold(key, 3 + attempt), wish.alpha, totals, wish.clients),
        least,
        wish.short,
        f"alpha = {wish.alpha}",
    )


def _plain(key: Tensor, alpha: float, totals: Ints, clients: int) -> Ints:
    return assign.counts_by_largest_remainder(host.dirichlet(key, alpha, (len(totals), clients)), totals)


def _floored(key: Tensor, alpha: float, totals: Ints, clients: int) -> Ints:
    return assign.counts_by_running_floor(host.dirichlet(key, alpha, (len(totals), clients)), totals)


def _capped(key: Tensor, alpha: float, totals: Ints, clients: int) -> Ints:
    """Class after class: who already holds 1/N of all rows gets none, and the shares of the others add up to 1."""
    logs = host.log_gamma(key, alpha, len(totals) * clients).reshape(len(totals), clients)
    counts = np.zeros((len(totals), clients), np.int64)
    for k, total in enumerate(totals):
        open_to = counts.sum(0) < totals.sum() / clients
        shares = assign.shares(np.where(open_to, logs[k], -np.inf)[None])
        counts[k] = assign.counts_by_running_floor(shares, total[None])[0]
    return counts
