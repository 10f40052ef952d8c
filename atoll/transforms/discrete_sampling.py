"""Whole numbers from exact tables: one draw of 64 random bits is one number.

The probabilities are worked out to 60 digits and rounded to 2^-63, so no outcome is off by more than 2^-62. A sampler
that rejects (Canonne et al., 2020) would be exact, but its number of draws depends on what was drawn, which neither a
stack of clients nor a captured graph can follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from atoll import rng
from atoll.errors import ConfigError
from atoll.rng import BitSource

Distribution = Literal["discrete_gaussian", "skellam"]
LARGEST = 1e5  # standard deviation that a table is made for
_BITS = 63


def sample_integers(
    key: Tensor, shape: tuple[int, ...], distribution: Distribution, std: float, source: BitSource = rng.bits
) -> Tensor:
    """Whole numbers, symmetric around 0, as float64. A standard deviation of 0 is 0."""
    if std == 0:
        return torch.zeros(shape, dtype=torch.float64, device=key.device)
    words = source(key, (2, *shape))
    at = (words[0] << 31) | (words[1] >> 1)
    size = torch.searchsorted(cumulative_table(distribution, std).to(key.device), at, right=True).double()
    return torch.where((words[1] & 1) > 0, size, -size)


@lru_cache(maxsize=8)
def cumulative_table(distribution: Distribution, std: float) -> Tensor:
    """P(|X| <= k) x 2^63 for k = 0, 1, ..., as far as it is below 1; nothing where that is 0 for certain."""
    if std > LARGEST:
        raise ConfigError(
            f"{distribution}: a standard deviation of {std:.4g} steps is too fine to draw exactly "
            f"(at most {LARGEST:g}). Use a larger fixed_point.step."
        )
    with localcontext() as context:
        context.prec = 60
        weights = _WEIGHTS[distribution](std)
        total = weights[0] + 2 * sum(weights[1:], Decimal(0))
        cumulative, mass, unit = [], weights[0], Decimal(2) ** _BITS / total
        for weight in weights[1:]:
            cumulative.append(int(mass * unit))
            mass += 2 * weight
    return torch.tensor([x for x in cumulative if x < 2**_BITS - 1], dtype=torch.int64)


def probabilities(distribution: Distribution, std: float) -> list[float]:
    """P(X = k) for k = 0, 1, ...; the same for -k.

    >>> [round(p, 4) for p in probabilities("discrete_gaussian", 1.0)[:3]]
    [0.3989, 0.242, 0.054]
    """
    with localcontext() as context:
        context.prec = 60
        weights = _WEIGHTS[distribution](std)
        total = weights[0] + 2 * sum(weights[1:], Decimal(0))
        return [float(w / total) for w in weights]


def _tail_cutoff(std: float) -> int:
    """Beyond this lies less than 2^-64, for a normal tail and for Skellam's heavier one."""
    return math.ceil(10.0 * std + 60.0)


def _discrete_gaussian(std: float) -> list[Decimal]:
    """exp(-k^2 / 2 std^2), each from the one before by exp(-(2k + 1) / 2 std^2)."""
    first = (-1 / (2 * Decimal(std) ** 2)).exp()
    weights, factor, square = [Decimal(1)], first, first * first
    for _ in range(_tail_cutoff(std)):
        weights.append(weights[-1] * factor)
        factor *= square
    return weights


def _skellam(std: float) -> list[Decimal]:
    """I_k(m), m = std^2: the modified Bessel functions, downwards by I_(k-1) = I_(k+1) + 2k/m I_k (Miller, 1952)."""
    m, top = Decimal(std) ** 2, 2 * _tail_cutoff(std)
    above, here, weights = Decimal(0), Decimal(1), []
    for k in range(top, 0, -1):
        above, here = here, above + 2 * k / m * here
        weights.append(here)
    return weights[::-1][: _tail_cutoff(std)]


_WEIGHTS: dict[Distribution, Callable[[float], list[Decimal]]] = {
    "discrete_gaussian": _discrete_gaussian,
    "skellam": _skellam,
}
