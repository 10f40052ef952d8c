"""Privacy losses of the Poisson-subsampled Gaussian on a grid, by arrays: what dp-accounting computes point by point.

One round is discretised by connecting the dots (Doroshenko et al., 2022), rounds are composed by a Fourier transform
(Koskela, Jälkö and Honkela, 2020). Both are pessimistic: a loss is never taken for a smaller one.

>>> removed, added = subsampled_gaussian(noise_multiplier=1.0, rate=0.01, grid=1e-3)
>>> round(max(x.self_compose(100).epsilon(1e-6) for x in (removed, added)), 2)
0.95
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

_TAIL = 0.5 * math.exp(-50)  # the probability of noise that one round takes for an infinite loss, or for the least
_TRUNCATED = 1e-15  # the same for all rounds together
_ORDERS = 20  # of Chernoff's bound, to either side
_HUGE = 700.0  # e to the power of more is no number


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """A privacy loss distribution: `mass[i]` of (lowest + i) x grid, and `infinity_mass` of an infinite one."""

    grid: float
    lowest: int
    mass: Array
    infinity_mass: float

    def self_compose(self, count: int) -> LossDistribution:
        import numpy as np

        if count == 1:
            return self
        first, last = _range(self.mass, count)
        size = last - first + 1
        length = _fft_length(max(size, len(self.mass)))
        whole = np.fft.irfft(np.fft.rfft(self.mass, length) ** count, length)
        infinity_mass = _TRUNCATED - math.expm1(count * math.log1p(-self.infinity_mass))
        return LossDistribution(self.grid, count * self.lowest + first, np.roll(whole, -first)[:size], infinity_mass)

    def delta(self, epsilon: float) -> float:
        """Σ p (1 - e^(ε - loss)) over the losses above epsilon."""
        import numpy as np

        start = min(len(self.mass), max(0, math.ceil(epsilon / self.grid) - self.lowest))
        losses = self._from(start)
        return float(self.infinity_mass - self.mass[start:] @ np.expm1(np.minimum(epsilon - losses, 0.0)))

    def epsilon(self, delta: float) -> float:
        """The smallest with `delta(epsilon)` at most this; infinite where there is none."""
        import numpy as np

        if self.infinity_mass > delta:
            return math.inf
        start = min(len(self.mass), max(0, 1 - self.lowest))  # no epsilon is negative
        above = self.infinity_mass + _sum_from(self.mass[start:])
        over = np.flatnonzero(above > delta)
        if not len(over):
            return 0.0
        losses = self._from(start)
        end, top = int(over[-1]) + 1, float(losses[over[-1]])  # epsilon is below: less than delta lies beyond
        scaled = _sum_from(self.mass[start:] * np.exp(np.minimum(top - losses, _HUGE)))
        short = np.flatnonzero(above[:end] - np.exp(losses[:end] - top) * scaled[:end] > delta)
        at = min(int(short[-1]) + 1, end - 1) if len(short) else 0  # the least loss that epsilon is not above
        return max(0.0, top + math.log((above[at] - delta) / scaled[at]))

    def _from(self, start: int) -> Array:
        import numpy as np

        losses: Array = self.grid * np.arange(self.lowest + start, self.lowest + len(self.mass), dtype=np.float64)
        return losses


def subsampled_gaussian(noise_multiplier: float, rate: float, grid: float) -> tuple[LossDistribution, LossDistribution]:
    """One round on a cohort that a unit is in with probability `rate` < 1: when it is removed, and when it is added."""
    from scipy.special import ndtri

    cost, stay = (0.5 - noise_multiplier * float(ndtri(_TAIL))) / noise_multiplier**2, math.log1p(-rate)
    most, least = _log_add(stay, math.log(rate) + cost), _log_add(stay, math.log(rate) - cost)
    return (
        _connect_the_dots(least, most, grid, lambda e: _delta_removed(e, noise_multiplier, rate)),
        _connect_the_dots(-most, -least, grid, lambda e: _delta_added(e, noise_multiplier, rate)),
    )


def _delta_removed(epsilon: Array, z: float, q: float) -> Array:
    """δ(ε) of (1 - q) N(0, z²) + q N(1, z²) against N(0, z²)."""
    import numpy as np
    from scipy.special import log_ndtr, ndtr

    delta = -np.expm1(np.minimum(epsilon, 0.0))
    some = epsilon > math.log1p(-q)
    e = epsilon[some]
    x = -_loss_if_sampled(e, q) * z - 0.5 / z
    log_near = log_ndtr(x)
    delta[some] = (1 - q) * np.exp(log_near) + q * ndtr(x + 1 / z) - np.exp(e + log_near)
    return delta


def _delta_added(epsilon: Array, z: float, q: float) -> Array:
    """δ(ε) of N(0, z²) against (1 - q) N(0, z²) + q N(1, z²)."""
    import numpy as np
    from scipy.special import log_ndtr

    delta = np.zeros_like(epsilon)
    some = -epsilon > math.log1p(-q)
    e = epsilon[some]
    x = _loss_if_sampled(-e, q) * z + 0.5 / z
    near, far = log_ndtr(x), log_ndtr(x - 1 / z)
    delta[some] = np.exp(near) - (1 - q) * np.exp(e + near) - q * np.exp(e + far)
    return delta


def _loss_if_sampled(loss: Array, rate: float) -> Array:
    """The loss given that the unit was sampled, from the loss of the mixture: log(1 + (e^loss - 1) / q)."""
    import numpy as np

    losses: Array = loss - math.log(rate) + np.log(-np.expm1(math.log1p(-rate) - loss))
    return losses


def _connect_the_dots(least: float, most: float, grid: float, delta: Callable[[Array], Array]) -> LossDistribution:
    """Losses on the grid whose δ(ε) is the straight line, in e^ε, between the true ones: never below the true curve."""
    import numpy as np

    low, high = math.floor(least / grid), math.ceil(most / grid)
    dots = np.minimum.accumulate(np.clip(delta(grid * np.arange(low, high + 1, dtype=np.float64)), 0.0, 1.0))
    steps, up = np.diff(dots), math.expm1(grid)
    mass = np.empty_like(dots)
    mass[0] = 1 - dots[0] + steps[0] / up
    mass[1:-1] = (steps[1:] - steps[:-1] * math.exp(grid)) / up
    mass[-1] = steps[-1] / math.expm1(-grid)
    return LossDistribution(grid, low, np.maximum(mass, 0.0), float(dots[-1]))


def _range(mass: Array, count: int) -> tuple[int, int]:
    """Outside of these places lies at most _CUT of the sum of so many, by Chernoff's bound."""
    import numpy as np

    first, last = 0, (len(mass) - 1) * count
    unit, slack = len(mass), math.log(2 / _TRUNCATED)
    for sign in (1, -1):
        step = np.exp(sign * np.arange(unit) / unit)
        grown = mass
        for order in range(1, _ORDERS + 1):
            grown = grown * step
            bound = (count * math.log(float(grown.sum())) + slack) * unit / (sign * order)
            last = min(last, math.ceil(bound) + 1) if sign > 0 else last
            first = max(first, math.floor(bound) - 1) if sign < 0 else first
    return first, last


def _sum_from(values: Array) -> Array:
    sums: Array = values[::-1].cumsum()[::-1]
    return sums


def _log_add(a: float, b: float) -> float:
    """log(e^a + e^b)."""
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def _fft_length(size: int) -> int:
    from scipy.fft import next_fast_len

    return int(next_fast_len(size, real=True))
