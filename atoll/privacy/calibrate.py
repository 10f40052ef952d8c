"""How much noise a budget asks for, and how many rounds a noise affords.

>>> from atoll.privacy import Analytic, Gaussian
>>> z = noise_for(Gaussian, epsilon=1.0, delta=1e-5, accountant=Analytic())
>>> round(z, 3), Analytic().epsilon(Gaussian(z), 1e-5) <= 1.0
(3.731, True)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from atoll.errors import ConfigError
from atoll.privacy.accountant import Accountant, supported_terms
from atoll.privacy.events import Event, check_delta, check_epsilon
from atoll.privacy.pld import Pld

MAX_NOISE = 2.0**24
MIN_NOISE = 2.0**-10


def noise_for(
    event: Callable[[float], Event], epsilon: float, delta: float, accountant: Accountant, tolerance: float = 1e-4
) -> float:
    """The smallest noise multiplier z (to a relative tolerance) with epsilon(event(z)) at most `epsilon`.

    Loss distributions are first searched quickly, on a wide grid and then on their own. The next noise is read off the
    line through both ends in logarithms, and every fourth one is the middle. The answer is one that the accountant
    itself was asked for, so it never overspends.
    """
    check_epsilon("privacy.epsilon", epsilon)
    check_delta("privacy.delta", delta)
    supported_terms(accountant, event(1.0))
    if isinstance(accountant, Pld):
        first_guess = _search(event, epsilon, delta, accountant.coarse(), tolerance, 1.0, 2.0)
        multiplier = _search(
            event, epsilon, delta, replace(accountant, quick=True), tolerance, first_guess, 1 + tolerance
        )
        while accountant.epsilon(event(multiplier), delta) > epsilon:
            multiplier *= 1 + tolerance
        return multiplier
    return _search(event, epsilon, delta, accountant, tolerance, 1.0, 2.0)


def _search(
    event: Callable[[float], Event],
    epsilon: float,
    delta: float,
    accountant: Accountant,
    tolerance: float,
    start: float,
    factor: float,
) -> float:
    spent: dict[float, float] = {}

    def cost(z: float) -> float:
        supported = accountant.supports(event(z)) is None  # with very little noise losses outgrow a grid
        spent[z] = accountant.epsilon(event(z), delta) if supported else math.inf
        return spent[z]

    low, high = _bracket(cost, epsilon, start, factor)
    above = True  # the guess is put on either side of the line in turns, so that both ends move
    while high - low > tolerance * high:
        middle = _guess(low, high, spent, epsilon) if len(spent) % 4 else None
        if middle is None:
            middle = math.sqrt(low * high) if high > 2 * low > 0 else (low + high) / 2
        else:
            middle *= 1 + (0.4 if above else -0.4) * tolerance
        least = 0.1 * tolerance * high
        middle = min(max(middle, low + least), high - least)
        above = cost(middle) > epsilon
        low, high = (middle, high) if above else (low, middle)
    return high


def _guess(low: float, high: float, spent: Mapping[float, float], epsilon: float) -> float | None:
    """Where epsilon would be met if it were a power of the noise; None where the ends do not tell."""
    most, least = spent.get(low, math.inf), spent[high]
    if not (0 < least < most < math.inf):
        return None
    return float(low * (high / low) ** (math.log(most / epsilon) / math.log(most / least)))


def _bracket(cost: Callable[[float], float], epsilon: float, start: float, factor: float) -> tuple[float, float]:
    """A noise that does not do, and one that does: `factor` apart, or more if the start is far off; at most 2."""
    z, now = start, cost(start)
    down = now <= epsilon
    while MIN_NOISE < z < MAX_NOISE:
        off = max(now, epsilon) / max(min(now, epsilon), 1e-300)  # near enough, epsilon falls with the noise squared
        factor = min(2.0, max(factor, math.sqrt(off)))
        other = z / factor if down else z * factor
        now = cost(other)
        if (now <= epsilon) != down:
            return (other, z) if down else (z, other)
        z, factor = other, factor**4
    if down:
        return z / factor, z  # as little noise as we look at
    raise ConfigError(
        "privacy.epsilon: no noise multiplier up to 2^24 keeps this budget. Use a larger epsilon or delta, "
        "fewer rounds, or a smaller cohort of a larger population."
    )


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
        low, high, step = high, high + 2 * step, 2 * step
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if accountant.epsilon(event(middle), delta) <= epsilon else (low, middle)
    return low
