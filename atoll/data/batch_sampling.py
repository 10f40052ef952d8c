"""Subsampled batches, drawn anew in every step: each example on its own (Poisson), or a fixed number of different ones.

What amplification by sampling assumes of DP-SGD. A draw is addressed by (key, step, client, place): neither the rest
of the cohort nor the width of the plan can change it.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.rng import host

Ints = NDArray[np.int64]
Sampling = Literal["shuffled", "poisson", "fixed"]

_OWN = -1  # folded into the round's key: epochs fold in 0, 1, 2, ...
_WORDS = 1 << 22  # drawn at a time


def poisson(ids: Tensor, sizes: Ints, steps: Ints, batch: int, largest: int, key: Tensor) -> tuple[Ints, Ints]:
    """Every example with probability min(1, batch / n): places (C, S, W), ascending, and how many are real (C, S).

    No client has more than `largest`, so no plan is wider. By the gaps between those that are drawn, so that the cost
    grows with the batches and not with the clients.

    >>> from atoll import rng
    >>> place, count = poisson(torch.arange(2), np.array([2, 9]), np.array([1, 2]), 3, 9, rng.key(0))
    >>> count.tolist(), place[1, 1, : count[1, 1]].tolist()
    ([[2, 0], [1, 6]], [0, 2, 3, 5, 7, 8])
    """
    rate = np.minimum(1.0, batch / np.maximum(sizes, 1))
    mean = float((rate * sizes).max(initial=0.0))
    wide = math.ceil(mean + 6 * math.sqrt(mean)) + 16
    while True:
        place = _gaps(ids, sizes, rate, _keys(key, int(steps.max(initial=0))), wide)
        if bool((place[..., -1] >= sizes[:, None]).all()):
            break
        wide *= 2  # a draw is addressed by its place, so the first ones stay what they were
    real = (place < sizes[:, None, None]) & (np.arange(place.shape[1]) < steps[:, None])[..., None]
    count = real.sum(-1)
    width = _width(batch, largest, int(count.max(initial=0)))
    return _cut(np.where(real, place, 0), width), count


def fixed(ids: Tensor, sizes: Ints, steps: Ints, batch: int, largest: int, key: Tensor) -> tuple[Ints, Ints]:
    """`batch` different examples (all, where there are fewer): places (C, S, W) and how many are real (C, S)."""
    longest, width = int(steps.max(initial=0)), max(1, min(batch, largest))
    place = np.zeros((len(sizes), longest, width), np.int64)
    at = owner, position = host.group_positions(sizes)
    first = np.flatnonzero(position < width)  # of each client's order, those that are taken
    keys = _keys(key, longest)
    for part in torch.split(torch.arange(longest), max(1, _WORDS // max(1, len(owner)))):  # type: ignore[no-untyped-call]
        if len(owner) and len(part):
            order = host.order(keys[part], ids.numpy(), sizes, at)[:, first]
            place[owner[first], int(part[0]) : int(part[-1]) + 1, position[first]] = order.T
    taken = np.arange(longest) < steps[:, None]
    return place, np.where(taken, np.minimum(sizes, width)[:, None], 0)


def _gaps(ids: Tensor, sizes: Ints, rate: NDArray[np.float64], keys: Tensor, wide: int) -> Ints:
    """The first `wide` successes of independent trials, (C, S, wide): P(gap > g) = (1 - rate)^g."""
    c = len(sizes)
    who, at = np.repeat(ids.numpy().astype(np.uint32), wide), np.tile(np.arange(wide, dtype=np.uint32), c)
    words = host.bits_at(keys, who, at) if len(keys) and c else np.empty((len(keys), c * wide), np.uint64)
    uniform = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    with np.errstate(divide="ignore"):
        miss = np.log1p(-rate)[None, :, None]  # -inf where all are taken: no gaps
    gaps = np.floor(np.log(uniform).reshape(len(keys), c, wide) / miss)
    gaps = np.minimum(gaps, sizes[None, :, None]).astype(np.int64)
    return np.asarray((np.cumsum(gaps + 1, -1) - 1).transpose(1, 0, 2))


def _keys(key: Tensor, steps: int) -> Tensor:
    own = host.fold(key, _OWN)
    return torch.stack([host.fold(own, s) for s in range(steps)]) if steps else torch.zeros((0, 2), dtype=torch.int64)


def _width(batch: int, largest: int, drawn: int) -> int:
    """Four deviations above the mean, and one more at a time where that is exceeded: rounds should share a shape."""
    step = math.ceil(math.sqrt(batch))
    beyond = max(0, -(-(drawn - batch - 4 * step) // step))
    return max(1, min(largest, batch + (4 + beyond) * step))


def _cut(x: Ints, width: int) -> Ints:
    """To this width; what is added is not real."""
    missing = max(0, width - x.shape[-1])
    return np.pad(x[..., :width], ((0, 0), (0, 0), (0, missing)))
