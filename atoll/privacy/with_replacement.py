"""How often one unit is drawn when cohorts are drawn with replacement.

In a round a unit is drawn k times, k ~ Binomial(draws, 1 / population), and adds k times its contribution. Given all
its k, the rounds are Gaussians of sensitivity k, which cost what one Gaussian of sensitivity √Σk² costs. With
probability at least 1 - slack, Σk² ≤ A; the rest is added to delta. Nobody needs to be kept from seeing who was
drawn: this is no amplification.
"""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache(maxsize=4096)
def multiplicity_bound(draws: int, population: int, rounds: int, slack: float) -> float:
    """A with P(Σ over rounds of k² > A) ≤ slack, by Chernoff's bound on k cut off at a K that is hardly ever passed.

    >>> multiplicity_bound(draws=1, population=1, rounds=7, slack=1e-6)  # always drawn, once a round
    7.0
    """
    import numpy as np
    from scipy.stats import binom

    most = 0
    while rounds * binom.sf(most, draws, 1 / population) > slack / 100:
        most += 1
    if most == 0:
        return 0.0
    k = np.arange(most + 1, dtype=float)
    log_mass = binom.logpmf(k, draws, 1 / population)
    log_slack = -math.log(slack * 0.99)
    best = float(rounds * most**2)
    for s in np.geomspace(1e-4, 50, 400):
        log_moment = float(np.logaddexp.reduce(log_mass + s * k**2))
        best = min(best, (rounds * log_moment + log_slack) / float(s))
    return max(best, 0.0)
