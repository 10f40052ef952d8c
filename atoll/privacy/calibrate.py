"""How much noise a budget asks for, and how many rounds a noise affords.

>>> from atoll.privacy import Analytic, Gaussian
>>> z = noise_for(Gaussian, epsilon=1.0, delta=1e-5, accountant=Analytic())
>>> round(z, 3), Analytic().epsilon(Gaussian(z), 1e-5) <= 1.0
(3.731, True)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from atoll.errors import ConfigError
from atoll.privacy.accountant import Accountant, checked
from atoll.privacy.events import Event, check_delta, check_epsilon

MOST_NOISE = 2.0**24
LEAST_NOISE = 2.0**-10


def noise_for(
    event: Callable[[float], Event], epsilon: float, delta: float, accountant: Accountant, tolerance: float = 1e-4
) -> float:
    """The smallest noise multiplier z (to a relative tolerance) with epsilon(event(z)) at most `epsilon`.

    Bisection on the accountant's epsilon; the answer is an end that was accounted, so it never overspends.
    """
    check_epsilon("privacy.epsilon", epsilon)
    check_delta("privacy.delta", delta)
    checked(accountant, event(1.0))
    low, high = _bracket(lambda z: accountant.epsilon(event(z), delta) <= epsilon)
    while high - low > tolerance * high:
        middle = math.sqrt(low * high) if high > 2 * low > 0 else (low + high) / 2
        low, high = (low, middle) if accountant.epsilon(event(middle), delta) <= epsilon else (middle, high)
    return high


def _bracket(enough: Callable[[float], bool]) -> tuple[float, float]:
    """A noise that does not do, and one at most twice as large that does."""
    z = 1.0
    if enough(z):
        while z > LEAST_NOISE and enough(z / 2):
            z /= 2
        return z / 2, z
    while not enough(2 * z):
        z *= 2
        if z >= MOST_NOISE:
            raise ConfigError(
                "privacy.epsilon: no noise multiplier up to 2^24 keeps this budget. Use a larger epsilon or delta, "
                "fewer rounds, or a smaller cohort of a larger population."
            )
    return z, 2 * z


def rounds_for(event: Callable[[int], Event], epsilon: float, delta: float, accountant: Accountant, most: int) -> int:
    """How many rounds the budget affords: the largest r up to `most` with epsilon(event(r)) at most `epsilon`.

    >>> from atoll.privacy import Analytic, Composed, Gaussian
    >>> rounds_for(lambda r: Composed(((Gaussian(10.0), r),)), 2.0, 1e-5, Analytic(), most=1000)
    25
    """
    check_epsilon("privacy.epsilon", epsilon)
    check_delta("privacy.delta", delta)
    low, high, step = 0, 1, 1
    while high <= most and accountant.epsilon(event(high), delta) <= epsilon:
        low, high, step = high, min(high + 2 * step, most + 1), 2 * step
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accountant.epsilon(event(middle), delta) <= epsilon else (low, middle)
    return low
