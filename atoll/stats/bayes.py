"""The Bayesian correlated t-test with a region of practical equivalence (ROPE), as OARF uses it.

Corani and Benavoli, A Bayesian approach for comparing cross-validated algorithms on multiple data sets (Machine
Learning 100, 2015); Benavoli, Corani, Demsar and Zaffalon, Time for a change (JMLR 18, 2017).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from atoll.errors import ConfigError
from atoll.stats.validate import Floats, Values, both, majority, share

Verdict = Literal["a", "equal", "b", "undecided"]

SURE = 0.95


@dataclass(frozen=True)
class Posterior:
    """What is believed of the mean difference: Student's t with `df` degrees, around `mean`, of this `scale`.

    The difference is A - B where more is better, else B - A: above `rope` A is better, below -`rope` B is. A scale of
    0 (every seed gave the same difference) is a certain mean.
    """

    mean: float
    scale: float
    df: int
    rope: float

    @property
    def p_a(self) -> float:
        """The probability that A is better, by more than the rope."""
        return self._above(self.rope)

    @property
    def p_b(self) -> float:
        """The probability that B is better, by more than the rope."""
        return self._below(-self.rope)

    @property
    def p_equal(self) -> float:
        """The probability that they differ by no more than the rope."""
        if self.scale == 0:
            return float(abs(self.mean) <= self.rope)
        if self.mean > self.rope:  # take the difference of two small tails: 1 - p_a - p_b has no digits left there
            return self._below(self.rope) - self._below(-self.rope)
        if self.mean < -self.rope:
            return self._above(-self.rope) - self._above(self.rope)
        return 1 - self.p_a - self.p_b

    def verdict(self, sure: float = SURE) -> Verdict:
        """Which of the three has at least this probability.

        >>> Posterior(mean=0.4, scale=0.05, df=9, rope=0.1).verdict()
        'a'
        """
        enough = majority(sure)
        chances: dict[Verdict, float] = {"a": self.p_a, "equal": self.p_equal, "b": self.p_b}
        return next((who for who, p in chances.items() if p >= enough), "undecided")

    def density(self, at: Values) -> Floats:
        """The probability density at each place. A certain mean is infinitely dense there, and nowhere else."""
        x = np.asarray(at, np.float64)
        if self.scale == 0:
            return np.where(x == self.mean, math.inf, 0.0)
        norm = math.lgamma((self.df + 1) / 2) - math.lgamma(self.df / 2) - math.log(self.df * math.pi) / 2
        t = (x - self.mean) / self.scale
        densities: Floats = np.exp(norm - (self.df + 1) / 2 * np.log1p(t * t / self.df)) / self.scale
        return densities

    def quantile(self, p: float) -> float:
        """The difference that the belief is below with probability p; two of them make a credible interval."""
        from scipy.special import stdtrit

        return self.mean + self.scale * float(stdtrit(self.df, share(p, "p")))

    def curve(self, points: int = 201) -> tuple[Floats, Floats]:
        """Places and densities to draw: 99 % of the belief and both ends of the rope; one point for a certain mean."""
        if self.scale == 0:
            return np.array([self.mean]), np.array([math.inf])
        edge = 1.05 * self.rope
        x = np.linspace(min(self.quantile(0.005), -edge), max(self.quantile(0.995), edge), points)
        return x, self.density(x)

    def _below(self, at: float) -> float:
        from scipy.special import stdtr

        return float(self.mean < at) if self.scale == 0 else float(stdtr(self.df, (at - self.mean) / self.scale))

    def _above(self, at: float) -> float:
        from scipy.special import stdtr

        return float(self.mean > at) if self.scale == 0 else float(stdtr(self.df, (self.mean - at) / self.scale))


def correlated_t(a: Values, b: Values, *, rope: float, rho: float, higher: bool = True) -> Posterior:
    """The posterior of the mean of the paired differences d, n of them, mean m and standard deviation s:

        t(n - 1), centred on m, of scale sqrt((1/n + rho / (1 - rho)) s^2)

    `rho` is the correlation between two differences. Use 0 for independent seeds on one fixed test set: the test is
    then Student's paired t. Use the share of the examples that is tested (1/k for k folds, 1/12 in OARF) where runs
    share training examples, as in cross-validation or random splits; without it such runs look surer than they are.
    `rope` is the largest difference that does not matter, in the unit of the values.

    >>> p = correlated_t([0.91, 0.93, 0.92, 0.95], [0.90, 0.90, 0.91, 0.92], rope=0.01, rho=0)
    >>> [round(x, 4) for x in (p.p_a, p.p_equal, p.p_b)]
    [0.9092, 0.0839, 0.0069]
    """
    x, y = both(a, b, least=2)
    if not 0 <= rope < math.inf:
        raise ConfigError(f"rope: must be 0 or above (got {rope}).")
    n, d = len(x), (x - y) * (1 if higher else -1)
    return Posterior(float(d.mean()), math.sqrt(inflation(n, rho)) * _spread(d, x, y), n - 1, float(rope))


def inflation(n: int, rho: float) -> float:
    """The variance of a mean of n differences in units of one: 1/n + rho / (1 - rho) (Nadeau and Bengio, 2003).

    >>> inflation(10, 0), round(inflation(10, 0.1), 4)
    (0.1, 0.2111)
    """
    if not 0 <= rho < 1:
        raise ConfigError(f"rho: must be at least 0 and below 1 (got {rho}). Use 0 for independent seeds.")
    return 1 / n + rho / (1 - rho)


def _spread(d: Floats, x: Floats, y: Floats) -> float:
    """The standard deviation; 0 where the differences are equal but for the rounding of x - y."""
    s = float(d.std(ddof=1))
    return 0.0 if s <= 4 * np.finfo(np.float64).eps * float(np.abs(np.concatenate([x, y])).max()) else s
