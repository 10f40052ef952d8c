"""Client after client takes rows of the classes it draws, as long as there are any; shared by the files beside this."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atoll.rng import host

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Chances = Callable[[int, Bools], Floats]  # of every class, for a client, given which classes have rows left


def fill(chances: Chances, points: int, totals: Ints, clients: int, key: Tensor) -> Ints:
    """How many rows of each class each client gets, (K, N), when it draws `points` of them one by one.

    A class without rows cannot be drawn: `chances` is asked again whenever one has run out. Until then all draws of a
    client are looked up at once, which is the same and a hundred times faster.
    """
    K, left = len(totals), totals.copy()
    counts = np.zeros((clients, K), np.int64)
    luck = luck_of(key, np.arange(clients), points)
    for c in range(clients):
        drawn = luck[c]
        for tries in range(1, K + 1):  # every one that is not the last empties a class
            picked = _pick(chances(c, left > 0), drawn)
            if (np.bincount(picked, minlength=K) > left).any():
                picked = picked[: _first_empty(picked, left)]
            taken = np.bincount(picked, minlength=K)
            left -= taken
            counts[c] += taken
            if len(picked) == len(drawn):
                break
            drawn = luck_of(host.fold(key, tries), np.array([c]), len(drawn) - len(picked))[0]
    return counts.T


def luck_of(key: Tensor, clients: Ints, points: int, start: int = 0) -> Floats:
    """Uniform numbers addressed by (key, client, draw): (clients, points)."""
    draw = np.arange(start, start + points, dtype=np.uint32)
    words = host.bits_at(key[None], np.repeat(clients.astype(np.uint32), points), np.tile(draw, len(clients)))[0]
    return np.asarray(((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52).reshape(len(clients), points)


def _pick(chances: Floats, drawn: Floats) -> Ints:
    edges = np.cumsum(chances)
    return np.searchsorted(edges / edges[-1], drawn, side="right")


def _first_empty(picked: Ints, left: Ints) -> int:
    """The first draw that finds its class empty."""
    remaining = left.tolist()
    for i, k in enumerate(picked.tolist()):
        if remaining[k] == 0:
            return i
        remaining[k] -= 1
    return len(picked)
