"""What right guesses say about privacy: a lower bound on epsilon from one run (Steinke, Nasr and Jagielski, 2023).

m units were each in or out by a fair coin of their own. Whoever sees only what was released says "in", "out" or
nothing for each; r of them get a guess and v guesses are right. How likely can that be, if the release is (ε, δ)-DP?

Let p_k be the probability of k right guesses. Flipping unit j's coin turns "the guess about j is right, and k are"
into "it is wrong, and k - 1 are right". Summed over all units, and over k in any set,

    sum k p_k  <=  e^ε sum (r - k + 1) p_(k-1) + m δ.

W ~ Binomial(r, 1 / (1 + e^-ε)) makes this an equality at δ = 0. Write b_k = P[W = k], B_k = P[W >= k], p_k = b_k z_k:
then it says sum_k k b_k max(0, z_k - z_(k-1)) <= m δ, every rise of z is paid for. Where P[v or more] is largest, z
does not fall on its way up to v, and is flat from v on, since k b_k / B_k grows with k. So it is flat, but for shares
w_j of the whole that are put on the values from j on, j <= v:

    P[v or more are right]  <=  B_v + max sum_j w_j (B_v / B_j - B_v),    sum w_j <= 1,  sum w_j j b_j / B_j <= m δ,

a concave hull of v points, read at m δ. Where this is at most 1 - confidence, the epsilon is refuted. Tests compare
it with a linear programme over all mechanisms there are: it is attained, so no better bound exists. The theorem of
Steinke et al., P[W >= v] + 2 m δ max_i P[v > W >= v - i] / i, says less wherever it is below a half, and much less
where m δ is not small.

>>> round(lower_bound(units=1000, guesses=200, correct=190, delta=1e-5, confidence=0.95), 3)
2.398
>>> lower_bound(units=1000, guesses=200, correct=100, delta=1e-5, confidence=0.95)
0.0
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from atoll.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

_MOST = 40.0  # beyond that 1 - 1 / (1 + e^-epsilon) is lost beside 1
_NOTHING = 1e-40  # steps where W is below with a smaller probability cannot be seen in the result


@dataclass(frozen=True)
class Bound:
    """Epsilon is at least this much, and the guesses that show it."""

    epsilon: float
    guesses: int
    correct: int


def p_value(units: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """The most likely that so many right guesses, or more, can be if the release is (epsilon, delta)-DP.

    >>> round(p_value(units=3, guesses=3, correct=3, epsilon=1.0, delta=0.0), 6)  # (e / (1 + e))^3
    0.390712
    """
    _check(units, guesses, correct, delta)
    if not 0 <= epsilon <= _MOST:
        raise ConfigError(f"epsilon: must be at least 0 and at most {_MOST:g} (got {epsilon}).")
    return _p_value(units, guesses, correct, epsilon, delta)


def lower_bound(units: int, guesses: int, correct: int, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon that is refuted at this confidence; 0 where none is.

    It is above the true epsilon with probability at most 1 - confidence, if the number of guesses was fixed before
    anything was seen. Where several numbers are tried, use `best_bound`.
    """
    _check(units, guesses, correct, delta)
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence: must be above 0 and below 1 (got {confidence}). 0.95 is usual.")

    def refuted(epsilon: float) -> bool:  # the larger epsilon, the more mechanisms there are
        return _p_value(units, guesses, correct, epsilon, delta) <= 1.0 - confidence

    low, high = 0.0, _MOST
    if not refuted(low):
        return 0.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def best_bound(units: int, tries: Iterable[tuple[int, int]], delta: float, confidence: float = 0.95) -> Bound:
    """The best of several (guesses, correct), each held to its share of 1 - confidence (Bonferroni)."""
    tried = list(tries)
    each = 1.0 - (1.0 - confidence) / max(1, len(tried))
    bounds = [Bound(lower_bound(units, g, c, delta, each), g, c) for g, c in tried]
    return max(bounds, key=lambda b: b.epsilon, default=Bound(0.0, 0, 0))


def _p_value(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    import numpy as np

    if v == 0:
        return 1.0
    log_b = _log_binomial(r, epsilon)
    log_above = np.logaddexp.accumulate(log_b[::-1])[::-1]  # log B_k
    log_below = np.logaddexp.accumulate(log_b)  # log P[W <= k]
    first = int(np.searchsorted(log_below, math.log(_NOTHING)))  # the first step worth a look
    j = np.arange(max(1, min(first, v)), v + 1)
    cost = np.exp(np.log(j) + log_b[j] - log_above[j])
    gain = np.exp(log_above[v] + log_below[j - 1] - log_above[j])
    return min(1.0, math.exp(log_above[v]) + _hull(m * delta, cost, gain))


def _log_binomial(r: int, epsilon: float) -> Array:
    """log P[W = k] for k = 0, ..., r."""
    import numpy as np
    from scipy.special import gammaln

    k = np.arange(r + 1)
    ways = gammaln(r + 1) - gammaln(k + 1) - gammaln(r - k + 1)
    found: Array = ways - k * math.log1p(math.exp(-epsilon)) - (r - k) * (epsilon + math.log1p(math.exp(-epsilon)))
    return found


def _hull(budget: float, cost: Array, gain: Array) -> float:
    """The most that a mixture of these and of nothing gains for this cost. Both grow along the arrays."""
    best = [(0.0, 0.0)]
    for x, y in zip(cost.tolist(), gain.tolist(), strict=True):
        while len(best) > 1 and _above((x, y), best[-2], best[-1]):
            best.pop()
        best.append((x, y))
    for (x0, y0), (x1, y1) in pairwise(best):
        if budget < x1:
            return y0 + (y1 - y0) * max(0.0, budget - x0) / (x1 - x0)
    return best[-1][1]


def _above(new: tuple[float, float], before: tuple[float, float], last: tuple[float, float]) -> bool:
    """Does the line from `before` to `new` run above `last`?"""
    (x, y), (x0, y0), (x1, y1) = new, before, last
    return (y - y0) * (x1 - x0) >= (y1 - y0) * (x - x0)


def _check(units: int, guesses: int, correct: int, delta: float) -> None:
    if not 0 <= correct <= guesses <= units:
        raise ConfigError(
            f"guesses: {correct} right of {guesses} guesses about {units} units cannot be. "
            "Use 0 <= correct <= guesses <= units."
        )
    if not 0 <= delta < 1:
        raise ConfigError(f"delta: must be at least 0 and below 1 (got {delta}). Use that of the claim.")
