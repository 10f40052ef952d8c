"""The Gaussian mechanism exactly (Balle and Wang, 2018): for sums of Gaussians without amplification."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atoll.privacy.accountant import Parts, delta_of, epsilon_of, supported_terms
from atoll.privacy.composition import Term, combined, flatten
from atoll.privacy.events import DistributedDiscreteGaussian, DistributedSkellam, Event, Gaussian, Laplace

# With less noise the exact figure drowns in rounding, and a bound that is hardly above it takes its place: that of
# concentrated privacy, ρ + 2 √(ρ log 1/δ) with ρ = 1/2z² (Bun and Steinke, 2016).
TOO_LITTLE_NOISE = 1e-5


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """Balle and Wang's theorem 8: δ = Φ(1/2z - εz) - e^ε Φ(-1/2z - εz).

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    from scipy.special import log_ndtr

    if noise_multiplier < TOO_LITTLE_NOISE:
        cost = 0.5 / noise_multiplier**2
        return 1.0 if epsilon <= cost else math.exp(-((epsilon - cost) ** 2) / (4 * cost))
    near, far = 0.5 / noise_multiplier, epsilon * noise_multiplier
    first, second = float(log_ndtr(near - far)), epsilon + float(log_ndtr(-near - far))
    return 0.0 if second >= first else math.exp(first) * -math.expm1(second - first)


def gaussian_epsilon(noise_multiplier: float, delta: float, tolerance: float = 1e-13) -> float:
    """The smallest epsilon at this delta, from above, by bisection.

    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    if noise_multiplier < TOO_LITTLE_NOISE:
        cost = 0.5 / noise_multiplier**2
        return cost + 2 * math.sqrt(cost * -math.log(delta))
    if gaussian_delta(noise_multiplier, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(noise_multiplier, high) > delta:
        high *= 2
    low = 0.0
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(noise_multiplier, middle) > delta else (low, middle)
        if middle in (low, high) and math.nextafter(low, high) >= high:
            break
    return high


def gaussian_epsilons(noise_multipliers: Sequence[float], delta: float, tolerance: float = 1e-13) -> list[float]:
    """`gaussian_epsilon` of many at once: the same steps, those that are done wait.

    >>> gaussian_epsilons([1.0, 2.0], 1e-5) == [gaussian_epsilon(1.0, 1e-5), gaussian_epsilon(2.0, 1e-5)]
    True
    """
    if len(noise_multipliers) == 1 or min(noise_multipliers, default=1.0) < TOO_LITTLE_NOISE:
        return [gaussian_epsilon(z, delta, tolerance) for z in noise_multipliers]
    import numpy as np
    from scipy.special import log_ndtr

    z = np.asarray(noise_multipliers)

    def over(epsilon: Any) -> Any:
        first, second = log_ndtr(0.5 / z - epsilon * z), epsilon + log_ndtr(-0.5 / z - epsilon * z)
        return np.exp(first) * -np.expm1(np.minimum(second - first, 0.0)) > delta

    some, low, high = over(0.0), np.zeros_like(z), np.ones_like(z)
    while (more := over(high)).any():
        high[more] *= 2
    while (open_ := high - low > tolerance * high).any():
        middle = (low + high) / 2
        if not ((low < middle) & (middle < high))[open_].all():
            break
        short = over(middle)
        low, high = np.where(open_ & short, middle, low), np.where(open_ & ~short, middle, high)
    return [float(x) for x in np.where(some, high, 0.0)]


@dataclass(frozen=True)
class Analytic:
    """Exact, and only for Gaussians without amplification: everyone, cyclic, banded, tree, with replacement."""

    name: str = "analytic"

    def supports(self, event: Event) -> str | None:
        for term in flatten(event).terms:
            if not isinstance(term.event, Gaussian):
                return f"{type(term.event).__name__} is not Gaussian. {_instead(term)}"
            if term.rate is not None or term.without_replacement is not None:
                return f"it knows no amplification by sampling. {_instead(term)}"
        return None

    def epsilon(self, event: Event, delta: float) -> float:
        return epsilon_of(supported_terms(self, event), delta, _epsilon)

    def delta(self, event: Event, epsilon: float) -> float:
        return delta_of(supported_terms(self, event), epsilon, _delta)


def _instead(term: Term) -> str:
    if term.without_replacement is not None or isinstance(term.event, DistributedDiscreteGaussian | DistributedSkellam):
        return "Use accountant = 'rdp'."
    if term.rate is not None and isinstance(term.event, Laplace):
        return "Use accountant = 'pld'."
    return "Use accountant = 'pld', 'prv' or 'rdp'."


def _epsilon(terms: Parts, delta: float) -> float:
    return gaussian_epsilon(combined(terms), delta)


def _delta(terms: Parts, epsilon: float) -> float:
    return gaussian_delta(combined(terms), epsilon)
