"""Atoll's own scores, each between 0 and 1: pure functions of numbers, one for every part of an axis.

Axes are means of their parts, seed by seed; intervals are over seeds. docs/card.md has the same formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

AXES = ("effectiveness", "robustness", "efficiency", "privacy", "fairness")


def effectiveness(federated: float, local: float, central: float, higher: bool = True) -> float:
    """E = (F - L) / (C - L), between 0 and 1: how much of the way from training alone to pooled data is covered.

    Where pooled data is no better than training alone there is no way to cover: 1 for who is as good as alone, else 0.

    >>> effectiveness(0.9, 0.5, 0.9), effectiveness(0.5, 0.5, 0.9), round(effectiveness(0.7, 0.5, 0.9), 6)
    (1.0, 0.0, 0.5)
    >>> effectiveness(2.0, 3.0, 1.0, higher=False), effectiveness(0.6, 0.6, 0.5)
    (0.5, 1.0)
    """
    if not math.isfinite(federated):
        return 0.0  # it diverged
    sign = 1.0 if higher else -1.0
    gained, way = sign * (federated - local), sign * (central - local)
    if way <= 0:
        return float(gained >= 0)
    return _share(gained / way)


def retention(stressed: float, calm: float, chance: float, higher: bool = True) -> float:
    """R = (S - Z) / (M - Z), between 0 and 1: what of the quality above chance is left under stress.

    Of a metric that is better when lower (a loss) R = M / S.

    >>> round(retention(0.5, 0.9, 0.1), 6), retention(0.95, 0.9, 0.1), retention(0.05, 0.9, 0.1)
    (0.5, 1.0, 0.0)
    >>> retention(0.8, 0.4, 0.0, higher=False)
    0.5
    """
    if not math.isfinite(stressed):
        return 0.0  # it diverged
    if not higher:
        return _share(calm / stressed) if stressed > 0 else 1.0
    return _share((stressed - chance) / (calm - chance)) if calm > chance else float(stressed >= calm)


def resisted(retained: float, planted: float) -> float:
    """min(R, 1 - P): what of the quality an attack leaves, and what it did not get of the class it wants.

    P is its success above that on a model without the attack; 0 for an attack that wants no class.

    >>> resisted(0.95, 0.0), round(resisted(0.95, 0.9), 6)
    (0.95, 0.1)
    """
    return min(retained, 1.0 - _share(planted))


def chance_level(metric: str, label_counts: Sequence[Sequence[int]] | None) -> float:
    """What a model that has learned nothing reaches: the largest class for accuracy, 1/2 for AUROC, else 0.

    >>> chance_level("accuracy", [[3, 1], [3, 1]]), chance_level("auroc", None), chance_level("r2", None)
    (0.75, 0.5, 0.0)
    """
    if metric == "auroc":
        return 0.5
    if metric not in ("accuracy", "balanced_accuracy") or not label_counts:
        return 0.0
    totals = np.asarray(label_counts, np.float64).sum(0)
    if metric == "balanced_accuracy":
        return 1.0 / max(1, int((totals > 0).sum()))
    return float(totals.max() / max(1.0, totals.sum()))


def target(central: float, chance: float, share: float, higher: bool = True) -> float:
    """What is to be reached: `share` of the way from chance to pooled data; of a loss, pooled data's over `share`.

    >>> round(target(0.9, 0.1, 0.9), 6), target(0.45, 0.0, 0.9, higher=False)
    (0.82, 0.5)
    """
    return chance + share * (central - chance) if higher else central / share


def cheapness(cost: float, baseline: float) -> float:
    """1 / (1 + cost / baseline): 1 is free, 1/2 as costly as the baseline, 0 never there.

    >>> cheapness(40.0, 40.0), cheapness(10.0, 30.0), cheapness(math.inf, 40.0)
    (0.5, 0.75, 0.0)
    """
    if not math.isfinite(cost):
        return 0.0
    if not math.isfinite(baseline):
        return 1.0
    return 1.0 / (1.0 + cost / baseline) if baseline > 0 else float(cost <= 0)


def unseen(auc: float) -> float:
    """1 - max(0, 2 AUC - 1) of a membership attack: 1 where it guesses, 0 where it knows.

    >>> unseen(0.5), unseen(0.75), unseen(1.0), unseen(0.4)
    (1.0, 0.5, 0.0, 1.0)
    """
    return 1.0 - _share(2.0 * auc - 1.0)


def hidden(epsilon: float | None, delta: float = 0.0) -> float:
    """2 (1 - delta) / (e^epsilon + 1): one minus the most that any attack may gain (Kairouz et al., 2015); none: 0.

    >>> hidden(0.0), round(hidden(math.log(3.0)), 6), hidden(None), hidden(math.inf)
    (1.0, 0.5, 0.0, 0.0)
    """
    if epsilon is None or epsilon > 700:
        return 0.0
    return _share(2.0 * (1.0 - delta) / (math.exp(epsilon) + 1.0))


def security(level: int) -> float:
    """FedEval's level, of 3.

    >>> security(0), security(3)
    (0.0, 1.0)
    """
    return level / 3.0


def worst_to_mean(worst: float, mean: float, higher: bool = True) -> float:
    """The worst tenth of the clients, as a share of the mean client; of a loss the other way round.

    >>> worst_to_mean(0.45, 0.9), worst_to_mean(2.0, 1.0, higher=False)
    (0.5, 0.5)
    """
    above, below = (worst, mean) if higher else (mean, worst)
    return _share(above / below) if below > 0 else 1.0


def evenness(gini: float) -> float:
    """1 - Gini of the clients' values.

    >>> evenness(0.0), evenness(0.25)
    (1.0, 0.75)
    """
    return _share(1.0 - gini)


def unharmed(gains: Sequence[float]) -> float:
    """The share of clients that do at least as well as alone.

    >>> unharmed([0.1, 0.0, -0.2, 0.3])
    0.75
    """
    return float(np.mean(np.asarray(gains) >= 0)) if len(gains) else math.nan


def by_seed_mean(parts: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean over parts at every seed that all of them have.

    >>> by_seed_mean([{0: 1.0, 1: 0.5}, {0: 0.0, 1: 0.5, 2: 0.9}])
    {0: 0.5, 1: 0.5}
    """
    common = [seed for seed in (parts[0] if parts else {}) if all(seed in part for part in parts)]
    return {seed: float(np.mean([part[seed] for part in parts])) for seed in common}


def _share(value: float) -> float:
    return min(1.0, max(0.0, float(value)))
