"""PrivUnitG: where to cut, and how to draw (Asi, Feldman and Talwar, Optimal algorithms for mean estimation, 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.rng import dp
from atoll.tree import Tree

_MOST = 500.0  # an epsilon above it would not fit in a float, nor make a difference
_COINS = 1 << 32  # folded into the key: no block of the stream that the normal numbers come from


@dataclass(frozen=True)
class Cap:
    """With probability `lean` the part along the update is above the cut, which a normal one is with prob. `above`."""

    lean: Any
    above: Any
    mean: Any

    def squares(self, size: int) -> float:
        """The expected squared length per number, before it is divided by the mean: (E a^2 + size - 1) / size.

        That is the squared error at an update of length 0; at length L the error is L^2 less.
        """
        return float((size + _cut(self.above) * self.mean) / max(1, size))


@lru_cache(maxsize=64)
def cap(epsilon: float) -> Cap:
    """The best cap for this epsilon: the largest mean, since the squared error is about size / mean^2.

    >>> best = cap(4.0)
    >>> round(math.log(best.lean / (1 - best.lean)) + math.log((1 - best.above) / best.above), 9)
    4.0
    """
    if epsilon > _MOST:
        return cap(_MOST)
    low, high = -epsilon - 20.0, epsilon + 20.0  # of log(q / (1 - q))
    for _ in range(200):  # the mean has one maximum: thirds are cut off
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (a, high) if _cap(epsilon, a).mean < _cap(epsilon, b).mean else (low, b)
    return _cap(epsilon, (low + high) / 2)


def _cap(epsilon: float, logit: float) -> Cap:
    lean = 1.0 / (1.0 + math.exp(logit - epsilon))
    above = 1.0 / (1.0 + math.exp(logit))
    if above < 1e-300 or above > 1 - 1e-12:
        return Cap(lean, above, 0.0)
    density = math.exp(-0.5 * _cut(above) ** 2) / math.sqrt(2.0 * math.pi)
    return Cap(lean, above, density * (lean / above - (1.0 - lean) / (1.0 - above)))


def _cut(above: float) -> float:
    from scipy.special import ndtri

    return -float(ndtri(above))


def privunit(value: Tree, bound: float | Tensor, chosen: Cap, key: Tensor) -> Tree:
    """A random vector whose mean is the update, for updates no longer than the bound."""
    coins = rng.uniform(rng.fold(key, _COINS), (3,), torch.float64)
    norm = tree.dot(value, value).sqrt()
    towards = 2.0 * (2.0 * coins[0] < 1.0 + norm / bound).double() - 1.0
    unit = _unit(value, norm, towards)
    tail = torch.where(
        coins[1] < chosen.lean, -_ndtri(chosen.above * coins[2]), _ndtri((1.0 - chosen.above) * coins[2])
    )
    z = dp.noise_like(value, key, dp.normal)
    along = (tail - tree.dot(z, unit)).float()
    return tree.map(lambda u, w: (bound / chosen.mean) * (w + along * u), unit, z)  # type: ignore[no-any-return]


def _unit(value: Tree, norm: Tensor, towards: Tensor) -> Tree:
    """The direction of the update; all entries alike where it has none."""
    is_zero = (norm == 0).double()
    even = is_zero * tree.count(value) ** -0.5
    return tree.map(lambda x: (towards * (x / (norm + is_zero) + even)).to(x.dtype), value)  # type: ignore[no-any-return]


def _ndtri(p: Tensor) -> Tensor:
    quantiles: Tensor = torch.special.ndtri(p)
    return quantiles
