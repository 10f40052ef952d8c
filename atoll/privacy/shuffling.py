"""Amplification by shuffling: what reports of a local randomiser cost when nobody sees whose each is.

Feldman, McMillan and Talwar (Hiding among the clones, 2021), theorem 3.1: n reports of an epsilon0-DP randomiser in a
random order are (epsilon, delta)-DP for replacing one client's data,

    epsilon = log(1 + (g - 1) / (g + 1) (8 sqrt(g log(4/delta) / n) + 8 g / n)),  g = e^epsilon0,

where epsilon0 <= log(n / (16 log(2/delta))). Outside of that, and where it would be more, the local guarantee stands.
"""

from __future__ import annotations

import math

from atoll.errors import ConfigError
from atoll.privacy.events import Approximate, Event, Pure, check_delta


def shuffled(local: Event, clients: int, delta: float) -> Event:
    """What one shuffle of so many reports did, for accountants to compose; `local` where nothing is gained.

    `clients` is the least number of reports that were shuffled, without those of clients that tell the server which
    ones are theirs. `delta` is what this one shuffle takes of the run's delta. Of randomisers that are not pure no
    amplification is claimed: their event comes back as it is.

    >>> shuffled(Pure(1.0), clients=10_000, delta=1e-6)
    Approximate(epsilon=0.21402565193083778, delta=1e-06)
    >>> shuffled(Pure(1.0), clients=100, delta=1e-6)
    Pure(epsilon=1.0)
    """
    check_delta("shuffle.delta", delta)
    if not isinstance(clients, int) or isinstance(clients, bool) or clients < 1:
        raise ConfigError(f"shuffle.clients: must be a whole number, at least 1 (got {clients}).")
    if not isinstance(local, Pure) or local.epsilon > math.log(clients / (16 * math.log(2 / delta))):
        return local
    epsilon = amplified_epsilon(local.epsilon, clients, delta)
    return Approximate(epsilon, delta) if epsilon < local.epsilon else local


def amplified_epsilon(epsilon: float, clients: int, delta: float) -> float:
    """The theorem's formula."""
    growth = math.exp(epsilon)
    spread = 8 * math.sqrt(growth * math.log(4 / delta) / clients) + 8 * growth / clients
    return math.log1p((growth - 1) / (growth + 1) * spread)
