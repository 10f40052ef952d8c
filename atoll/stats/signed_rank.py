"""Wilcoxon's signed-rank test for paired values, and Holm's correction for many of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from atoll.errors import ConfigError, DataError
from atoll.stats.ranks import midranks
from atoll.stats.validate import ROUNDING, Floats, Values, both, finite

EXACT = 200  # pairs up to which all sign patterns are counted


@dataclass(frozen=True)
class Wilcoxon:
    """The sums of the ranks where A is above and below B, the two-sided p value, and how it was found."""

    above: float
    below: float
    p: float
    n: int  # pairs that differ: the others have no sign
    kind: Literal["exact", "normal"]

    @property
    def smallest(self) -> float:
        """The smallest p that n pairs can give, 2^(1 - n): 0.25 at 3 seeds, 0.0625 at 5, 0.031 at 6."""
        return min(1.0, 2.0 ** (1 - self.n))


def wilcoxon(a: Values, b: Values, zeros: Literal["pratt", "drop"] = "pratt") -> Wilcoxon:
    """Are the differences a - b symmetric around 0? Ranks of |d|, ties share their mean rank.

    Under that hypothesis each rank has its sign by a fair coin; the exact p counts all 2^n sign patterns of the ranks
    at hand, so ties need no correction. Above 200 pairs it is the normal approximation, mean sum(r) / 2, variance
    sum(r^2) / 4. Differences of 0 are ranked and then left out (Pratt, 1959), or left out first ("drop", as Wilcoxon
    did in 1945). 0.9 - 0.8 and 0.8 - 0.7 are one difference: what only rounding tells apart is equal.

    >>> wilcoxon([5, 7, 9, 8, 6, 9], [4, 5, 6, 4, 1, 3])
    Wilcoxon(above=21.0, below=0.0, p=0.03125, n=6, kind='exact')
    """
    x, y = both(a, b)
    if zeros not in ("pratt", "drop"):
        raise ConfigError(f"zeros: must be 'pratt' or 'drop' (got {zeros!r}).")
    same = ROUNDING * float(np.abs(np.concatenate([x, y])).max())
    d = np.where(np.abs(x - y) <= same, 0.0, x - y)
    d = d if zeros == "pratt" else d[d != 0]
    ranks = midranks(np.abs(d), same)
    above, below, ranks = float(ranks[d > 0].sum()), float(ranks[d < 0].sum()), ranks[d != 0]
    exact = len(ranks) <= EXACT
    p = _exact(ranks, min(above, below)) if exact else _normal(ranks, min(above, below))
    return Wilcoxon(above, below, p, len(ranks), "exact" if exact else "normal")


def holm(p: Sequence[float] | Floats) -> Floats:
    """p values corrected for their number (Holm, 1979): the i-th smallest of m times m - i + 1, never falling, up to 1.

    The chance of any false alarm among them is then at most the level at which they are read.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    raw = finite(p, "p")
    if ((raw < 0) | (raw > 1)).any():
        raise DataError(f"p: must lie between 0 and 1 (got {raw.min()} to {raw.max()}).")
    order = np.argsort(raw, kind="stable")
    found = np.empty_like(raw)
    found[order] = np.minimum(np.maximum.accumulate(raw[order] * np.arange(len(raw), 0, -1)), 1.0)
    return found


def _exact(ranks: Floats, smaller: float) -> float:
    """Twice the share of the sign patterns whose sum is at most this."""
    doubled = np.rint(2 * ranks).astype(np.int64)  # a shared rank may end in .5
    chances = np.zeros(int(doubled.sum()) + 1)
    chances[0] = 1.0
    for rank in doubled:
        moved = np.zeros_like(chances)
        moved[rank:] = chances[: len(chances) - rank]
        chances = (chances + moved) / 2
    return min(1.0, 2 * float(chances[: round(2 * smaller) + 1].sum()))


def _normal(ranks: Floats, smaller: float) -> float:
    from scipy.special import ndtr

    z = (smaller - ranks.sum() / 2) / math.sqrt((ranks**2).sum() / 4)
    return min(1.0, 2 * float(ndtr(z)))
