"""Amplification by shuffling: what reports of a local randomiser cost when nobody sees whose each is.

Feldman, McMillan and Talwar (Hiding among the clones, 2021): n reports of an epsilon0-DP randomiser in a random order
are as private, for replacing one client's data, as the pair of theorem 3.2. With C ~ Bin(n - 1, e^-epsilon0) clones,
A ~ Bin(C, 1/2) and D ~ Bernoulli(g / (g + 1)), g = e^epsilon0: (A + D, C - A + 1 - D) against (A + 1 - D, C - A + D).
Its divergence is summed here. Theorem 3.1 bounds it in closed form where epsilon0 <= log(n / (16 log(2/delta))):

    epsilon = log(1 + (g - 1) / (g + 1) (8 sqrt(g log(4/delta) / n) + 8 g / n))
"""

from __future__ import annotations

import math

from atoll.errors import ConfigError
from atoll.privacy.events import Approximate, Event, Pure, check_delta

_LEAST_DELTA = 1e-11  # that can be summed: below, rounding is no longer small beside it
_ROUNDING = 1e-13  # of a sum of probabilities, put on top
_MOST_EPSILON = 50.0  # beyond, a clone is as rare as e^-50
_WORTH_IT = 0.99  # of the local epsilon: for less than a hundredth no delta is paid
_TAILS = 10.0  # deviations of C that are summed; the rest counts as lost


def shuffled(local: Event, clients: int, delta: float) -> Event:
    """What one shuffle of so many reports did, for accountants to compose; `local` where nothing is gained.

    `clients` is the least number of reports that were shuffled, without those of clients that tell the server which
    ones are theirs. `delta` is what this one shuffle takes of the run's delta. Of randomisers that are not pure no
    amplification is claimed: their event comes back as it is.

    >>> event = shuffled(Pure(1.0), clients=10_000, delta=1e-6)
    >>> round(event.epsilon, 4), event.delta
    (0.053, 1e-06)
    >>> shuffled(Pure(1.0), clients=2, delta=1e-6)
    Pure(epsilon=1.0)
    """
    check_delta("shuffle.delta", delta)
    if not isinstance(clients, int) or isinstance(clients, bool) or clients < 1:
        raise ConfigError(f"shuffle.clients: must be a whole number, at least 1 (got {clients}).")
    if not isinstance(local, Pure) or local.epsilon > _MOST_EPSILON:
        return local
    bounds = [clones_epsilon(local.epsilon, clients, delta)] if delta >= _LEAST_DELTA else []
    if local.epsilon <= math.log(clients / (16 * math.log(2 / delta))):
        bounds.append(closed_form_epsilon(local.epsilon, clients, delta))
    epsilon = min(bounds, default=local.epsilon)
    return Approximate(epsilon, delta) if epsilon < _WORTH_IT * local.epsilon else local


def closed_form_epsilon(epsilon: float, clients: int, delta: float) -> float:
    """Theorem 3.1, where it holds."""
    growth = math.exp(epsilon)
    spread = 8 * math.sqrt(growth * math.log(4 / delta) / clients) + 8 * growth / clients
    return math.log1p((growth - 1) / (growth + 1) * spread)


def clones_epsilon(epsilon: float, clients: int, delta: float) -> float:
    """The smallest epsilon of theorem 3.2's pair at this delta, from above, by bisection; at most the local one."""
    low, high = 0.0, epsilon
    while high - low > 1e-6 * epsilon:
        middle = (low + high) / 2
        low, high = (middle, high) if clones_delta(epsilon, clients, middle) > delta else (low, middle)
    return high


def clones_delta(local: float, clients: int, epsilon: float) -> float:
    """Theorem 3.2's pair: the sum over outcomes of max(0, P - e^epsilon Q), from above, for epsilon < local.

    Given C = c, P / Q grows with the first number a, so the positive terms are those from some a on:
    r = a / (c - a + 1) above (e^epsilon h - (1 - h)) / (h - e^epsilon (1 - h)), where h = g / (g + 1).
    """
    import numpy as np
    from scipy.stats import binom

    mean, rate = (clients - 1) * math.exp(-local), math.exp(-local)
    width = _TAILS * (math.sqrt(mean * (1 - rate)) + 1)
    c = np.arange(max(0, math.floor(mean - width)), min(clients - 1, math.ceil(mean + width)) + 1)
    h, growth = 1 / (1 + math.exp(-local)), math.exp(epsilon)
    ratio = (growth * h - (1 - h)) / (h - growth * (1 - h))
    first = np.floor(ratio / (1 + ratio) * (c + 1)) + 1
    stay, move = binom.sf(first - 1, c, 0.5), binom.sf(first - 2, c, 0.5)  # A >= a, and A + 1 >= a
    divergence = np.clip(h * move + (1 - h) * stay - growth * (h * stay + (1 - h) * move), 0, None)
    weights = binom.pmf(c, clients - 1, rate)
    outside = binom.cdf(c[0] - 1, clients - 1, rate) + binom.sf(c[-1], clients - 1, rate)
    return float(weights @ divergence + outside) + _ROUNDING
