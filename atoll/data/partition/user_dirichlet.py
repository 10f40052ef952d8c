"""A mixture of classes for every client."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from atoll.data.partition import assign
from atoll.data.partition.dirichlet import above_zero
from atoll.data.partition.fill import Bools, Floats, Ints, fill, luck_of
from atoll.data.partition.partition import Partition
from atoll.rng import host

_PATIENCE = 20  # pfl-research: so many tries for each point before the chances are evened out
_SPREAD = 0.02  # and by so much
_CHUNKS = 2000  # of tries; then the rows that are left are taken as they come


@dataclass(frozen=True)
class UserDirichlet:
    """Every client draws its own class proportions from Dirichlet(alpha), and then `points` rows by them.

    q_c ~ Dir(alpha, ..., alpha) over the K classes; each of the client's rows is of a class drawn from q_c, without
    replacement over all clients. Rows that nobody drew are left out. When a class has run out:
    `profile = "reddi"`: its chance is 0 and the others are scaled up (Hsu et al., 2019, https://arxiv.org/abs/1909.06335;
    Reddi et al., 2020, https://arxiv.org/abs/2003.00295);
    `profile = "pfl-research"`, as its code: a draw that finds nothing is repeated, and after every 20 x `points` draws
    0.02 is added to each chance (from the second time on, the last class's chance was set to 1 before).
    """

    clients: Annotated[int, Field(ge=1)]
    points: Annotated[int, Field(ge=1)]
    alpha: Annotated[float, Field(gt=0)] = 0.1
    profile: Literal["reddi", "pfl-research"] = "reddi"

    def __call__(self, labels: Tensor | None, keys: dict[str, Tensor], examples: int, key: Tensor) -> Partition:
        classes = assign.classes_of(labels, "user_dirichlet")
        above_zero(self.alpha)
        assign.check_enough_rows(self.clients, self.points, examples)
        counts = self._counts(np.bincount(classes), key)
        owner = assign.owners_by_counts(counts, classes, host.fold(key, 1))
        return assign.partition_by_owner(owner, self.clients, host.fold(key, 2), repr(self))

    def _counts(self, totals: Ints, key: Tensor) -> Ints:
        K = len(totals)
        logs = host.log_gamma(host.fold(key, 0), self.alpha, self.clients * K).reshape(self.clients, K)
        if self.profile == "pfl-research":
            return _spread(assign.shares(logs), self.points, totals, host.fold(key, 3))

        def chances(client: int, left: Bools) -> Floats:
            return assign.shares(np.where(left, logs[client], -np.inf))

        return fill(chances, self.points, totals, self.clients, host.fold(key, 3))


def _spread(chances: Floats, points: int, totals: Ints, key: Tensor) -> Ints:
    """pfl-research's way: draws that find nothing are repeated, and slowly the chances are evened out."""
    left = totals.copy()
    counts = np.zeros(chances.shape, np.int64)
    luck = luck_of(key, np.arange(len(chances)), points)
    for c, own in enumerate(chances):
        need, chunk, chance, edges = points, 0, own.copy(), np.cumsum(own)
        while need:
            drawn = luck[c] if chunk == 0 else luck_of(key, np.array([c]), points, chunk * points)[0]
            picked = np.minimum(np.searchsorted(edges, drawn, side="right"), len(own) - 1)
            taken = _accepted(picked, left, need) if chunk < _CHUNKS else _as_they_come(left, need)
            left -= taken
            counts[c] += taken
            need -= int(taken.sum())
            chunk += 1
            if chunk % _PATIENCE == 0:
                chance = (chance + _SPREAD) / (chance + _SPREAD).sum()
                edges = np.cumsum(chance)
                chance[-1] = 1.0
    return counts.T


def _accepted(picked: Ints, left: Ints, need: int) -> Ints:
    """How many of each class are taken: in order, where there are rows left, until there is enough."""
    taken = np.bincount(picked, minlength=len(left))
    if need == len(picked) and (taken <= left).all():
        return taken
    taken, remaining = np.zeros_like(left), left.tolist()
    for k in picked.tolist():
        if remaining[k] and need:
            remaining[k] -= 1
            taken[k] += 1
            need -= 1
    return taken


def _as_they_come(left: Ints, need: int) -> Ints:
    return np.diff(np.minimum(np.cumsum(left), need), prepend=0)
