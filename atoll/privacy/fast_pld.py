"""Losses of Poisson-sampled Gaussian noise on a grid, by arrays: what dp-accounting computes point by point.

One round is discretised by connecting the dots (Doroshenko et al., 2022), rounds are composed by a Fourier transform
(Koskela, Jälkö and Honkela, 2020). Both are pessimistic: a loss is never taken for a smaller one.

>>> removed, added = drawn_gaussian(noise_multiplier=1.0, rate=0.01, grid=1e-3)
>>> round(max(x.times(100).epsilon(1e-6) for x in (removed, added)), 2)
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
_CUT = 1e-15  # the same for all rounds together
_ORDERS = 20  # of Chernoff's bound, to either side
_HUGE = 700.0  # e to the power of more is no number


@dataclass(frozen=True, eq=False)
class Losses:
    """The probability of every loss: `mass[i]` of (lowest + i) x grid, and `lost` of an infinite one."""

    grid: float
    lowest: int
    mass: Array
    lost: float

    def times(self, count: int) -> Losses:
        """Of so many rounds."""
        import numpy as np

        if count == 1:
            return self
        first, last = _range(self.mass, count)
        size = last - first + 1
        length = _fast(max(size, len(self.mass)))
        whole = np.fft.irfft(np.fft.rfft(self.mass, length) ** count, length)
        lost = _CUT - math.expm1(count * math.log1p(-self.lost))
        return Losses(self.grid, count * self.lowest + first, np.roll(whole, -first)[:size], lost)

    def delta(self, epsilon: float) -> float:
        """Σ p (1 - e^(ε - loss)) over the losses above epsilon."""
        import numpy as np

        start = min(len(self.mass), max(0, math.ceil(epsilon / self.grid) - self.lowest))
        losses = self._from(start)
        return float(self.lost - self.mass[start:] @ np.expm1(np.minimum(epsilon - losses, 0.0)))

    def epsilon(self, delta: float) -> float:
        """The smallest with `delta(epsilon)` at most this; infinite where there is none."""
        import numpy as np

        if self.lost > delta:
            return math.inf
        start = min(len(self.mass), max(0, 1 - self.lowest))  # no epsilon is negative
        above = self.lost + _from_top(self.mass[start:])
        over = np.flatnonzero(above > delta)
        if not len(over):
            return 0.0
        losses = self._from(start)
        end, top = int(over[-1]) + 1, float(losses[over[-1]])  # epsilon is below: less than delta lies beyond
        scaled = _from_top(self.mass[start:] * np.exp(np.minimum(top - losses, _HUGE)))
        short = np.flatnonzero(above[:end] - np.exp(losses[:end] - top) * scaled[:end] > delta)
        at = min(int(short[-1]) + 1, end - 1) if len(short) else 0  # the least loss that epsilon is not above
        return max(0.0, top + math.log((above[at] - delta) / scaled[at]))

    def _from(self, start: int) -> Array:
        import numpy as np

        found: Array = self.grid * np.arange(self.lowest + start, self.lowest + len(self.mass), dtype=np.float64)
        return found


def drawn_gaussian(noise_multiplier: float, rate: float, grid: float) -> tuple[Losses, Losses]:
    """One round on a cohort that a unit is in with probability `rate` < 1: the unit is removed, or added."""
    from scipy.special import ndtri

    cost, stay = (0.5 - noise_multiplier * float(ndtri(_TAIL))) / noise_multiplier**2, math.log1p(-rate)
    most, least = _join(stay, math.log(rate) + cost), _join(stay, math.log(rate) - cost)
    return (
        _connected(least, most, grid, lambda e: _removed(e, noise_multiplier, rate)),
        _connected(-most, -least, grid, lambda e: _added(e, noise_multiplier, rate)),
    )


def _removed(epsilon: Array, z: float, q: float) -> Array:
    """δ(ε) of (1 - q) N(0, z²) + q N(1, z²) against N(0, z²)."""
    import numpy as np
    from scipy.special import log_ndtr, ndtr

    found = -np.expm1(np.minimum(epsilon, 0.0))
    some = epsilon > math.log1p(-q)
    e = epsilon[some]
    x = -_undrawn(e, q) * z - 0.5 / z
    log_near = log_ndtr(x)
    found[some] = (1 - q) * np.exp(log_near) + q * ndtr(x + 1 / z) - np.exp(e + log_near)
    return found


def _added(epsilon: Array, z: float, q: float) -> Array:
    """δ(ε) of N(0, z²) against (1 - q) N(0, z²) + q N(1, z²)."""
    import numpy as np
    from scipy.special import log_ndtr

    found = np.zeros_like(epsilon)
    some = -epsilon > math.log1p(-q)
    e = epsilon[some]
    x = _undrawn(-e, q) * z + 0.5 / z
    near, far = log_ndtr(x), log_ndtr(x - 1 / z)
    found[some] = np.exp(near) - (1 - q) * np.exp(e + near) - q * np.exp(e + far)
    return found


def _undrawn(loss: Array, rate: float) -> Array:
    """The loss of a unit that was drawn, where this is what is left of it: log(1 + (e^loss - 1) / q)."""
    import numpy as np

    found: Array = loss - math.log(rate) + np.log(-np.expm1(math.log1p(-rate) - loss))
    return found


def _connected(least: float, most: float, grid: float, delta: Callable[[Array], Array]) -> Losses:
    """Losses on the grid whose δ(ε) is the straight line, in e^ε, between the true ones: never below the true curve."""
    import numpy as np

    low, high = math.floor(least / grid), math.ceil(most / grid)
    dots = np.minimum.accumulate(np.clip(delta(grid * np.arange(low, high + 1, dtype=np.float64)), 0.0, 1.0))
    steps, up = np.diff(dots), math.expm1(grid)
    mass = np.empty_like(dots)
    mass[0] = 1 - dots[0] + steps[0] / up
    mass[1:-1] = (steps[1:] - steps[:-1] * math.exp(grid)) / up
    mass[-1] = steps[-1] / math.expm1(-grid)
    return Losses(grid, low, np.maximum(mass, 0.0), float(dots[-1]))


def _range(mass: Array, count: int) -> tuple[int, int]:
    """Outside of these places lies at most _CUT of the sum of so many, by Chernoff's bound."""
    import numpy as np

    first, last = 0, (len(mass) - 1) * count
    unit, slack = len(mass), math.log(2 / _CUT)
    for sign in (1, -1):
        step = np.exp(sign * np.arange(unit) / unit)
        grown = mass
        for order in range(1, _ORDERS + 1):
            grown = grown * step
            bound = (count * math.log(float(grown.sum())) + slack) * unit / (sign * order)
            last = min(last, math.ceil(bound) + 1) if sign > 0 else last
            first = max(first, math.floor(bound) - 1) if sign < 0 else first
    return first, last


def _from_top(values: Array) -> Array:
    """The sum of this one and all after it."""
    found: Array = values[::-1].cumsum()[::-1]
    return found


def _join(a: float, b: float) -> float:
    """log(e^a + e^b)."""
    return max(a, b) + math.log1p(math.exp(-abs(a - b)))


def _fast(size: int) -> int:
    from scipy.fft import next_fast_len

    return int(next_fast_len(size, real=True))
