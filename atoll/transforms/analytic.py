"""The Gaussian mechanism exactly (Balle and Wang, 2018): its delta, epsilon and deviation for a sensitivity of 1.

>>> round(gaussian_epsilon(gaussian_deviation(1.0, 1e-5), 1e-5), 6)
1.0
"""

import math
from collections.abc import Callable


def gaussian_delta(std: float, epsilon: float) -> float:
    """Phi(1/2s - epsilon s) - e^epsilon Phi(-1/2s - epsilon s)."""
    from scipy.special import log_ndtr

    low, high = -0.5 / std - epsilon * std, 0.5 / std - epsilon * std
    return float(math.exp(log_ndtr(high)) - math.exp(epsilon + log_ndtr(low)))


def gaussian_epsilon(std: float, delta: float) -> float:
    """The least epsilon at this delta."""
    return _least(lambda epsilon: gaussian_delta(std, epsilon) <= delta)


def gaussian_deviation(epsilon: float, delta: float) -> float:
    """The least standard deviation for this epsilon and delta."""
    return _least(lambda std: gaussian_delta(std, epsilon) <= delta)


def _least(good: Callable[[float], bool]) -> float:
    """The smallest number, to 1e-12 of itself, from which on `good` holds; above it, never below."""
    low, high = 1e-9, 1.0
    while not good(high):
        low, high = high, 2.0 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high
