"""A mean over seeds and its interval: Student's t, or the bootstrap (BCa).

A single seed has no spread and no interval. A value that is not finite makes the mean NaN or infinite, the spread and
the interval NaN: a seed that diverged is never dropped here without a word.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Literal

import numpy as np

from atoll.errors import ConfigError, DataError
from atoll.stats.validate import Floats, Values, share

Kind = Literal["t", "bca", "percentile", "none"]

LEVEL = 0.95
RESAMPLES = 9999
_ALL = 7  # up to so many values, all n^n resamples are counted (1,716 different ones at 7), so nothing is random
_USUAL_TAIL = (1 + LEVEL) / 2
_USUAL_QUANTILES = (  # stdtrit(freedom, 0.975) for 1 to 12 degrees of freedom, to the last bit
    12.706204736174694, 4.302652729749462, 3.1824463052837078, 2.7764451051977934, 2.5705818356363146,
    2.4469118511449786, 2.364624251592784, 2.306004135204166, 2.262157162798205, 2.228138851986274,
    2.200985160091639, 2.1788128296672284,
)  # fmt: skip
_SAME = 1e-12  # of the spread: resampled means that differ by less are equal, but for rounding


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` seeds; `std` has n - 1 below the line; one seed has no spread and no interval."""

    mean: float
    std: float | None
    low: float | None
    high: float | None
    n: int
    kind: Kind
    level: float = LEVEL

    @property
    def half(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def all_equal(self) -> bool:
        """Have all of several seeds one value, up to rounding? An interval of no width would claim certainty.

        >>> t_interval([0.999, 0.999, 0.999]).all_equal, t_interval([0.999]).all_equal
        (True, False)
        """
        return self.std is not None and self.std <= 1e-9 * abs(self.mean)

    @property
    def diverged(self) -> bool:
        """Is some seed's value not finite? Then the mean is not either."""
        return not math.isfinite(self.mean)

    def overlaps(self, other: Estimate) -> bool:
        """Whether the two intervals meet; without an interval a mean is a point.

        >>> a, b = t_interval([1.0, 2.0, 3.0]), t_interval([4.0, 5.0, 6.0])
        >>> a.overlaps(b), a.overlaps(t_interval([5.0]))
        (True, False)
        """
        return abs(self.mean - other.mean) <= (self.half or 0.0) + (other.half or 0.0)

    def __neg__(self) -> Estimate:
        """Of the same values with their signs turned."""
        low, high = (None if end is None else -end for end in (self.high, self.low))
        return replace(self, mean=-self.mean, low=low, high=high)


def t_interval(values: Values, level: float = LEVEL) -> Estimate:
    """mean ± t(n - 1) s / sqrt(n): right for means of normal values, and close for three seeds or more.

    >>> e = t_interval([0.80, 0.84, 0.85, 0.91])
    >>> round(e.mean, 3), round(e.std, 4), round(e.low, 4), round(e.high, 4), e.kind
    (0.85, 0.0455, 0.7777, 0.9223, 't')
    """
    array, mean, std = _moments(values)
    half = half_width(array, level)
    if half is None:
        return Estimate(mean, None, None, None, 1, "none", level)
    return Estimate(mean, std, mean - float(half), mean + float(half), len(array), "t", level)


def half_width(values: Floats, level: float = LEVEL) -> Floats | None:
    """Half the width of the t interval over the first axis, t(n - 1) s / sqrt(n); None for one seed."""
    n, tail = len(values), (1 + share(level, "level")) / 2
    if n < 2:
        return None
    with np.errstate(invalid="ignore"):  # a seed that diverged: the interval is NaN, as it should be
        half: Floats = t_quantile(n - 1, tail) * values.std(axis=0, ddof=1) / math.sqrt(n)
    return half


def t_quantile(freedom: int, tail: float) -> float:
    """The quantile of Student's t. Usual ones stand here: importing scipy takes longer than all else of a table."""
    if tail == _USUAL_TAIL and freedom <= len(_USUAL_QUANTILES):
        return _USUAL_QUANTILES[freedom - 1]
    from scipy.special import stdtrit  # without the weight of scipy.stats

    return float(stdtrit(freedom, tail))


def bootstrap_interval(values: Values, level: float = LEVEL, resamples: int = RESAMPLES) -> Estimate:
    """The bias-corrected and accelerated bootstrap of the mean (Efron, 1987).

    The ends are the quantiles Phi(z0 + (z0 + z) / (1 - a (z0 + z))) of the resampled means, where z = ± z(level),
    Phi(z0) is the share of resampled means below the mean, and a = sum d^3 / (6 (sum d^2)^1.5) for d = x - mean. Where
    that is undefined (all values equal, or a denominator that is not positive) the plain percentiles are given.

    The same numbers, in any order, give the same interval: all n^n resamples are counted up to n = 7, and above that
    they come from a generator addressed by n. It cannot leave the range of the values, so with few seeds it is too
    narrow: it covers the centre of symmetric values at most 1 - 2^(1 - n) of the time, 75 % at 3 seeds.

    >>> e = bootstrap_interval([1.0, 2.0, 3.0, 4.0, 10.0])
    >>> e.mean, round(e.low, 3), round(e.high, 3), e.kind
    (4.0, 2.0, 8.2, 'bca')
    """
    if resamples < 1:
        raise ConfigError(f"resamples: must be 1 or more (got {resamples}).")
    array, mean, std = _moments(values)
    tail = (1 - share(level, "level")) / 2
    if std is None:
        return Estimate(mean, None, None, None, 1, "none", level)
    if not math.isfinite(std):
        return Estimate(mean, std, math.nan, math.nan, len(array), "bca", level)
    spread = np.sort(array - mean)
    scale = float(spread[-1] - spread[0])
    if scale == 0 or std < _SAME * abs(mean):
        return Estimate(mean, std, mean, mean, len(array), "percentile", level)
    spread = spread / scale
    means, weights = _resampled(spread, resamples)
    ends = _bca(spread, means, weights, tail)
    low, high = (mean + scale * _quantile(means, weights, p) for p in ends or (tail, 1 - tail))
    return Estimate(mean, std, low, high, len(array), "bca" if ends else "percentile", level)


def _moments(values: Values) -> tuple[Floats, float, float | None]:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not len(array):
        raise DataError(f"values: must be one number per seed, at least one (got shape {array.shape}).")
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        return array, float(array.mean()), None if len(array) < 2 else float(array.std(ddof=1))


def _resampled(values: Floats, resamples: int) -> tuple[Floats, Floats]:
    """Means of resamples, sorted, and the probability of each."""
    n = len(values)
    if n <= _ALL:
        counts, weights = (np.array(part, np.float64) for part in zip(*_compositions(n), strict=True))
        means = counts @ values / n
    else:
        means, weights = values[_indices(n, resamples)].mean(axis=1), np.full(resamples, 1 / resamples)
    order = np.argsort(means, kind="stable")
    return means[order], weights[order]


def _compositions(n: int) -> Iterator[tuple[list[int], float]]:
    """How often each of n values may be drawn in n draws, and the probability of that: n! / (c1! ... cn! n^n)."""
    for drawn in combinations_with_replacement(range(n), n):
        counts = [drawn.count(i) for i in range(n)]
        yield counts, math.factorial(n) / math.prod(map(math.factorial, counts)) / n**n


def _indices(n: int, resamples: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """(resamples, n) draws from 0..n-1: raw words of Philox, which numpy promises to keep, under a key of their own."""
    key = hashlib.blake2b(f"atoll.stats.bootstrap {n}".encode(), digest_size=16).digest()
    words = np.random.Philox(key=int.from_bytes(key, "big")).random_raw(resamples * n)
    return (words % np.uint64(n)).astype(np.int64).reshape(resamples, n)


def _bca(values: Floats, means: Floats, weights: Floats, tail: float) -> tuple[float, float] | None:
    """The probabilities of the two ends; None where they are undefined. `values` have mean 0 and range 1."""
    from scipy.special import ndtr, ndtri

    below = float(weights[means < -_SAME].sum() + weights[np.abs(means) <= _SAME].sum() / 2)
    if not 0 < below < 1:
        return None
    z0, a = float(ndtri(below)), float((values**3).sum() / (6 * (values**2).sum() ** 1.5))
    shifted = [z0 + float(ndtri(p)) for p in (tail, 1 - tail)]
    if any(1 - a * z <= 0 for z in shifted):
        return None
    low, high = (float(ndtr(z0 + z / (1 - a * z))) for z in shifted)
    return low, high


def _quantile(means: Floats, weights: Floats, p: float) -> float:
    """The smallest mean that has at least the share p at or below it."""
    is_enough = np.cumsum(weights) >= p - _SAME
    return float(means[int(np.argmax(is_enough))] if is_enough.any() else means[-1])
