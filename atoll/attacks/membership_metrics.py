"""Membership inference in numbers: how well scores tell members from others, and the epsilon that this rules out.

A score is high where the attacker believes in a member. Numbers in, numbers out. Every interval and bound takes the
scores of members and of others as independent draws; `docs/audits-membership.md` says when they are.

>>> found = judge([3.0, 4.0, 5.0] * 20, [1.0, 2.0, 3.0] * 20, delta=1e-5)
>>> round(found.auc, 3), found.tpr_at_fpr["0.01"], found.members
(0.944, 0.6666666666666666, 60)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.errors import ConfigError, DataError

Floats = NDArray[np.float64]
Pair = tuple[float, float]

CONFIDENCE = 0.95
RATES = (0.01, 0.001)  # of false alarms, at which true positives are counted


@dataclass(frozen=True)
class Membership:
    """What scores of members and of others say; the fields of an entry in audit.json."""

    auc: float
    auc_interval: Pair
    tpr_at_fpr: dict[str, float]
    tpr_intervals: dict[str, Pair]
    advantage: float  # TPR - FPR on one half of the scores, at the threshold that is best on the other half
    advantage_interval: Pair
    epsilon_lower: float
    confidence: float
    delta: float
    members: int
    others: int
    note: str = ""


def judge(
    members: ArrayLike, others: ArrayLike, delta: float, confidence: float = CONFIDENCE, note: str = ""
) -> Membership:
    """All there is to say of these scores."""
    inside, outside = _scores(members, "members"), _scores(others, "others")
    area, low, high = auc(inside, outside, confidence)
    rates = {f"{rate:g}": tpr_at(inside, outside, rate, confidence) for rate in RATES}
    gain, *interval = advantage(inside, outside, confidence)
    coarse = [name for name, rate in zip(rates, RATES, strict=True) if len(outside) * rate < 1]
    if coarse:
        told = f"FPR {' and '.join(coarse)}: no false alarm among {len(outside)} others"
        note = f"{note}; {told}" if note else told
    return Membership(
        area,
        (low, high),
        {name: found[0] for name, found in rates.items()},
        {name: found[1:] for name, found in rates.items()},
        gain,
        (interval[0], interval[1]),
        epsilon_lower(inside, outside, delta, confidence),
        confidence,
        delta,
        len(inside),
        len(outside),
        note,
    )


def auc(members: ArrayLike, others: ArrayLike, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """P(member's score > other's) + P(equal) / 2, and its interval.

    The variance is that of DeLong, DeLong and Clarke-Pearson (1988), the interval is taken on the logit scale. Where
    the variance is zero (all members above all others): Clopper and Pearson's on min(members, others) disjoint pairs.
    """
    from scipy.special import expit, logit, ndtri
    from scipy.stats import rankdata

    inside, outside = _scores(members, "members"), _scores(others, "others")
    m, n = len(inside), len(outside)
    ranks = rankdata(np.concatenate([inside, outside]))
    above = (ranks[:m] - rankdata(inside)) / n  # the share of others below each member
    below = 1 - (ranks[m:] - rankdata(outside)) / m  # the share of members above each other
    area = float(above.mean())
    variance = float(above.var(ddof=1) / m + below.var(ddof=1) / n)
    if variance <= 1e-15 or not 0 < area < 1:
        return area, *clopper_pearson(area * min(m, n), min(m, n), confidence)
    half = float(ndtri(0.5 + _level(confidence) / 2)) * np.sqrt(variance) / (area * (1 - area))
    return area, float(expit(logit(area) - half)), float(expit(logit(area) + half))


def tpr_at(
    members: ArrayLike, others: ArrayLike, rate: float, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """The members found where at most `rate` of the others are taken for one; Clopper and Pearson at that threshold."""
    inside, outside = _scores(members, "members"), _scores(others, "others")
    allowed = int(np.floor(rate * len(outside) + 1e-9))
    threshold = np.sort(outside)[::-1][allowed] if allowed < len(outside) else -np.inf
    found = int((inside > threshold).sum())
    return found / len(inside), *clopper_pearson(found, len(inside), confidence)


def advantage(members: ArrayLike, others: ArrayLike, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """TPR - FPR (twice the balanced accuracy, less 1) on one half, at the best threshold of the other half."""
    first, second = _halves(_scores(members, "members"), _scores(others, "others"))
    at, missed, alarms = _errors(*first)
    threshold = at[int(np.argmin(missed / len(first[0]) + alarms / len(first[1])))]
    tp, fp = int((second[0] > threshold).sum()), int((second[1] > threshold).sum())
    each = 1 - (1 - _level(confidence)) / 2
    (tpr_low, tpr_high), (fpr_low, fpr_high) = (
        clopper_pearson(k, len(part), each) for k, part in zip((tp, fp), second, strict=True)
    )
    return tp / len(second[0]) - fp / len(second[1]), tpr_low - fpr_high, tpr_high - fpr_low


def epsilon_lower(members: ArrayLike, others: ArrayLike, delta: float, confidence: float = CONFIDENCE) -> float:
    """With this confidence no (epsilon, delta)-private program with a smaller epsilon gives such scores.

    Privacy demands FNR >= (1 - delta - FPR) / e^epsilon and the same with FPR and FNR exchanged (Kairouz, Oh and
    Viswanath, 2015). The threshold is chosen on one half of the scores; on the other both rates are bounded from above
    by Clopper and Pearson, each with half of what may go wrong.
    """
    if not 0 <= delta < 1:
        raise ConfigError(f"delta: must be at least 0 and below 1 (got {delta}). Use less than 1 / clients.")
    first, second = _halves(_scores(members, "members"), _scores(others, "others"))
    tail = (1 - _level(confidence)) / 2
    at, missed, alarms = _errors(*first)
    there = _ruled_out(missed, len(first[0]), alarms, len(first[1]), delta, tail)
    threshold = at[int(np.argmax(there))]
    missed, alarms = np.array([(second[0] <= threshold).sum()]), np.array([(second[1] > threshold).sum()])
    return float(max(0.0, _ruled_out(missed, len(second[0]), alarms, len(second[1]), delta, tail)[0]))


def clopper_pearson(successes: float, trials: int, confidence: float = CONFIDENCE) -> Pair:
    """The exact two-sided interval of a binomial share (Clopper and Pearson, 1934).

    >>> [round(x, 4) for x in clopper_pearson(0, 10)]
    [0.0, 0.3085]
    """
    tail = (1 - _level(confidence)) / 2
    low = 1 - _upper(np.array([trials - successes], np.float64), trials, tail)[0]
    return float(low), float(_upper(np.array([successes], np.float64), trials, tail)[0])


def _upper(successes: NDArray[Any], trials: int, tail: float) -> Floats:
    """The share under which so few successes have the probability `tail`."""
    from scipy.special import betaincinv

    rest = np.maximum(trials - successes, 1e-300)  # all of them: 1
    found: Floats = np.where(successes >= trials, 1.0, betaincinv(successes + 1.0, rest, 1 - tail))
    return found


def _ruled_out(missed: NDArray[Any], m: int, alarms: NDArray[Any], n: int, delta: float, tail: float) -> Floats:
    """log((1 - delta - FPR) / FNR) or the same the other way round, whichever is more."""
    fnr, fpr = _upper(missed, m, tail), _upper(alarms, n, tail)
    with np.errstate(divide="ignore"):
        ways = [np.log(np.maximum(1 - delta - a, 0.0)) - np.log(b) for a, b in ((fpr, fnr), (fnr, fpr))]
    found: Floats = np.maximum(*ways)
    return found


def _errors(inside: Floats, outside: Floats) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
    """Every threshold (a member is what lies above it), the members that it misses, and its false alarms."""
    there = np.unique(np.concatenate([inside, outside]))
    with np.errstate(invalid="ignore"):  # between two infinities
        between = there[:-1] / 2 + there[1:] / 2
    at = np.concatenate([[-np.inf], np.where(np.isnan(between), there[:-1], between), there[-1:]])
    missed = np.searchsorted(np.sort(inside), at, side="right")
    alarms = len(outside) - np.searchsorted(np.sort(outside), at, side="right")
    return at, missed, alarms


def _halves(inside: Floats, outside: Floats) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Two halves, by a shuffle that knows nothing but the numbers of scores."""
    orders = [np.argsort(np.random.Philox(key=[i, len(x)]).random_raw(len(x))) for i, x in enumerate((inside, outside))]
    (a, b), (c, d) = ((x[order[0::2]], x[order[1::2]]) for x, order in zip((inside, outside), orders, strict=True))
    return (a, c), (b, d)


def _scores(values: ArrayLike | Sequence[float], name: str) -> Floats:
    found = np.asarray(values, np.float64)
    if found.ndim != 1 or len(found) < 2:
        raise DataError(f"{name}: needs two scores or more (got shape {found.shape}). Audit more examples or clients.")
    if np.isnan(found).any():
        raise DataError(f"{name}: {int(np.isnan(found).sum())} scores are not a number. Has the model diverged?")
    return found


def _level(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence: must be between 0 and 1 (got {confidence}). Example: 0.95.")
    return confidence
