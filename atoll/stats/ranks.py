"""Average ranks over the rows of a table, and which of them differ: Friedman's test and Nemenyi's critical difference.

Demsar, Statistical comparisons of classifiers over multiple data sets (JMLR 7, 2006). N rows (data sets), k methods.
Rank 1 is the best; equal values share their mean rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.errors import ConfigError, DataError
from atoll.stats.validate import ROUNDING, Floats, finite, finite_table, share

Table = Sequence[Sequence[float]] | Floats


@dataclass(frozen=True)
class Friedman:
    """Do the methods differ at all? Friedman's chi^2 with its p, and Iman and Davenport's less timid F with its p."""

    chi2: float
    p: float
    f: float
    f_p: float


def midranks(values: Sequence[float] | Floats, same: float | None = None) -> Floats:
    """Ranks from 1, smallest first; equal values share the mean of their ranks.

    Neighbours that differ by no more than `same` are equal: by default 1e-12 of the largest, the rounding of a mean.

    >>> midranks([3.0, 1.0, 3.0]).tolist()
    [2.5, 1.0, 2.5]
    """
    array = np.asarray(values, np.float64)
    if not len(array):
        return array
    same = ROUNDING * float(np.abs(array).max()) if same is None else same
    order = np.argsort(array, kind="stable")
    group = np.concatenate([[0], np.cumsum(np.diff(array[order]) > same)])
    places = np.arange(1, len(array) + 1)
    ranks = np.empty_like(array)
    ranks[order] = (np.bincount(group, places) / np.bincount(group))[group]
    return ranks


def row_ranks(values: Table, higher: bool = True) -> Floats:
    """The rank of each method in each row, (N, k); 1 is the best."""
    rows = finite_table(values)
    return np.stack([midranks(-row if higher else row) for row in rows])


def average_ranks(values: Table, higher: bool = True) -> Floats:
    """The mean over rows of each method's rank.

    >>> average_ranks([[0.9, 0.8, 0.7], [0.6, 0.6, 0.5]]).tolist()
    [1.25, 1.75, 3.0]
    """
    means: Floats = row_ranks(values, higher).mean(axis=0)
    return means


def friedman(values: Table, higher: bool = True, ties: bool = True) -> Friedman:
    """chi^2 = 12 N / (k (k + 1)) (sum R^2 - k (k + 1)^2 / 4) on k - 1 degrees, R the average ranks, and

        F = (N - 1) chi^2 / (N (k - 1) - chi^2) on k - 1 and (k - 1)(N - 1) degrees (Iman and Davenport, 1980)

    With `ties`, chi^2 is divided by 1 - sum (t^3 - t) / (N k (k^2 - 1)) over groups of t equal values, as most programs
    do; Demsar's examples are without.

    >>> friedman([[1, 2, 3], [1, 2, 3], [2, 1, 3]]).chi2
    4.666666666666666
    """
    from scipy.special import chdtrc, fdtrc

    ranks = row_ranks(values, higher)
    (N, k), R = ranks.shape, ranks.mean(axis=0)
    if N < 2:
        raise DataError("table: Friedman's test needs two rows or more (got 1).")
    tied_share = _ties(ranks) if ties else 0.0
    if tied_share > 1 - 1e-12:  # every row is one tie
        return Friedman(0.0, 1.0, 0.0, 1.0)
    chi2 = 12 * N / (k * (k + 1)) * float(((R - (k + 1) / 2) ** 2).sum()) / (1 - tied_share)
    rest = N * (k - 1) - chi2
    f = (N - 1) * chi2 / rest if rest > 1e-9 * N * k else math.inf  # every row has the same order
    f_p = 0.0 if f == math.inf else float(fdtrc(k - 1, (k - 1) * (N - 1), f))
    return Friedman(chi2, float(chdtrc(k - 1, chi2)), f, f_p)


def critical_difference(methods: int, rows: int, alpha: float = 0.05) -> float:
    """Nemenyi: average ranks that differ by more are different at level alpha, all pairs taken together.

    CD = q sqrt(k (k + 1) / (6 N)), q the upper alpha quantile of the studentized range of k means, over sqrt(2).

    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    from scipy.stats import studentized_range

    if methods < 2 or rows < 1:
        raise ConfigError(f"critical difference: needs two methods and one row or more (got {methods} and {rows}).")
    q = float(studentized_range.ppf(1 - share(alpha, "alpha"), methods, np.inf))
    return q / math.sqrt(2) * math.sqrt(methods * (methods + 1) / (6 * rows))


def not_different(average: Sequence[float] | Floats, difference: float) -> list[tuple[int, ...]]:
    """The largest groups of methods whose average ranks lie within the difference: the bars of the plot.

    Methods by their place in `average`, the best first. A method that differs from all others is in no group.

    >>> not_different([3.1, 2.0, 2.9, 1.9], 1.0)
    [(3, 1, 2), (2, 0)]
    """
    R = finite(average, "average ranks")
    order = np.argsort(R, kind="stable")
    groups: list[tuple[int, ...]] = []
    reached = 0
    for start in range(len(order)):
        stop = start + sum(R[i] - R[order[start]] <= difference + 1e-12 for i in order[start:])
        if stop > reached and stop - start > 1:
            groups.append(tuple(int(i) for i in order[start:stop]))
        reached = max(reached, stop)
    return groups


def _ties(ranks: Floats) -> float:
    """The share of the ranks' variance that ties have taken."""
    N, k = ranks.shape
    sizes = [np.unique(row, return_counts=True)[1].astype(np.float64) for row in ranks]
    return float(sum((t**3 - t).sum() for t in sizes) / (N * k * (k * k - 1)))
