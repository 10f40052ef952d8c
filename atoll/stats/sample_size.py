"""How many paired seeds would settle a comparison? By the power of the t-test, and by the Bayesian verdict."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from atoll.errors import ConfigError
from atoll.stats.bayes import SURE, correlated_t, inflation
from atoll.stats.validate import Floats, Values, majority, share

MOST_SEEDS = 1000  # more seeds than anybody runs: None is said instead
_DRAWS = 20_000


def power(effect: float, n: int, alpha: float = 0.05) -> float:
    """The chance that the two-sided paired t-test on n seeds sees a true effect = mean / standard deviation.

    P(|T| > t): T is noncentral t on n - 1 degrees with centre effect sqrt(n), and t the 1 - alpha / 2 quantile of
    Student's t.

    >>> round(power(0.5, 34), 3)
    0.808
    """
    if n < 2:
        raise ConfigError(f"n: a t-test needs two pairs or more (got {n}).")
    return float(_power(effect, np.array([n], np.float64), alpha)[0])


def seeds_for_power(effect: float, chance: float = 0.8, alpha: float = 0.05, cap: int = MOST_SEEDS) -> int | None:
    """The smallest n with at least this power; None if even `cap` seeds have less.

    The effect should be one that matters, not the one that was just measured: a measured effect is most often large by
    luck, and the answer is then too small.

    >>> seeds_for_power(1.0), seeds_for_power(0.5), seeds_for_power(0.01)
    (10, 34, None)
    """
    n = _sizes(cap)
    return _first_size(n, _power(effect, n, alpha) >= share(chance, "chance"))


def seeds_to_settle(
    a: Values, b: Values, *, rope: float, rho: float, sure: float = SURE, cap: int = MOST_SEEDS
) -> int | None:
    """The smallest number of seeds at which p(A better), p(equal) or p(B better) is at least `sure`, if all seeds are
    like these: n for which t(n - 1) around m of scale sqrt((1/n + rho / (1 - rho)) s^2) has that share on one side.

    m and s stay what they are now, so it is a guess as good as they are: `chance_to_settle` says how good. A number no
    larger than the seeds at hand means that it is settled. None: more than `cap`, or never (a mean on the edge of
    the rope, or rho above 0 and too much spread). The expected p would be no help: whatever n, it is the p of today.

    >>> a, b = [0.91, 0.93, 0.92, 0.95], [0.90, 0.90, 0.91, 0.92]
    >>> seeds_to_settle(a, b, rope=0.01, rho=0)
    6
    """
    now = correlated_t(a, b, rope=rope, rho=rho)
    s = now.scale / math.sqrt(inflation(len(a), rho))
    n = _sizes(cap)
    scale = s * np.sqrt([inflation(int(size), rho) for size in n])
    return _first_size(n, _largest_posterior(now.mean, scale, n - 1, rope) >= majority(sure))


def chance_to_settle(a: Values, b: Values, n: int, *, rope: float, sure: float = SURE) -> float:
    """The chance that n seeds in all, these and new ones, would settle it: independent seeds, rho = 0.

    Over the posterior predictive: sigma^2 = (n0 - 1) s^2 / chi^2(n0 - 1), mu = N(m, sigma^2 / n0), new seeds
    N(mu, sigma^2), then the test on all of them; 20,000 addressed draws, so to within 0.004 (one standard error).

    >>> a, b = [0.91, 0.93, 0.92, 0.95], [0.90, 0.90, 0.91, 0.92]
    >>> round(chance_to_settle(a, b, 6, rope=0.01), 1), round(chance_to_settle(a, b, 60, rope=0.01), 1)
    (0.6, 0.9)
    """
    now = correlated_t(a, b, rope=rope, rho=0.0)
    n0, new = len(a), n - len(a)
    if new < 0:
        raise ConfigError(f"n: counts all seeds, so it must be at least the {n0} at hand (got {n}).")
    squares = now.scale**2 * n0 * (n0 - 1)  # sum of squared deviations
    if new == 0 or squares == 0:
        scale = np.array([now.scale])
        return float(_largest_posterior(now.mean, scale, np.array([n - 1.0]), rope)[0] >= majority(sure))
    draw = _generator(n0, n)
    sigma2 = squares / draw.chisquare(n0 - 1, _DRAWS)
    gap = draw.standard_normal(_DRAWS) * np.sqrt(sigma2 * (1 / n0 + 1 / new))  # new mean - m: both are uncertain
    inside = sigma2 * draw.chisquare(new - 1, _DRAWS) if new > 1 else np.zeros(_DRAWS)
    mean = now.mean + gap * new / n
    scale = np.sqrt((squares + inside + gap**2 * n0 * new / n) / (n - 1) / n)
    return float((_largest_posterior(mean, scale, np.full(_DRAWS, n - 1.0), rope) >= majority(sure)).mean())


def _power(effect: float, n: Floats, alpha: float) -> Floats:
    from scipy.special import nctdtr, stdtrit

    if not math.isfinite(effect):
        raise ConfigError(f"effect: must be a finite number (got {effect}).")
    t, centre = stdtrit(n - 1, 1 - share(alpha, "alpha") / 2), abs(effect) * np.sqrt(n)
    # The series gives NaN where the share below t, or below -t, is smaller than a float can tell from 0.
    below, opposite = np.nan_to_num(nctdtr(n - 1, centre, t)), np.nan_to_num(nctdtr(n - 1, centre, -t))
    powers: Floats = 1 - below + opposite
    return powers


def _largest_posterior(mean: float | Floats, scale: Floats, df: Floats, rope: float) -> Floats:
    """The largest of p(A better), p(equal), p(B better)."""
    from scipy.special import stdtr

    with np.errstate(divide="ignore", invalid="ignore"):  # a scale of 0 is a certain mean: ± infinity, 0/0 on the edge
        p_a, p_b = (stdtr(df, np.nan_to_num((sign * mean - rope) / scale, nan=-np.inf)) for sign in (1, -1))
    largest: Floats = np.maximum(np.maximum(p_a, p_b), 1 - p_a - p_b)
    return largest


def _sizes(cap: int) -> Floats:
    if cap < 2:
        raise ConfigError(f"cap: must be 2 or more (got {cap}).")
    return np.arange(2, cap + 1, dtype=np.float64)


def _first_size(n: Floats, enough: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int | None:
    return int(n[int(np.argmax(enough))]) if enough.any() else None


def _generator(*address: int) -> np.random.Generator:
    # the address names the room as it was first called: another name would be other draws
    key = hashlib.blake2b(f"atoll.stats.settle {address}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "big")))
