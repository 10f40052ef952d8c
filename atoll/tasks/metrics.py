"""Metrics from measured columns: sums over any group of examples, merged first and divided last.

A column is one number per example. Grouped by client, a metric is per-client; with everyone in one group it is
central (pfl-research's two kinds).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Columns = Mapping[str, Floats]
Groups = NDArray[np.int64]
Better = Literal["higher", "lower"]


class Metric(Protocol):
    """`needs` columns; gives one number per group, NaN where a group has nothing to say."""

    @property
    def needs(self) -> tuple[str, ...]: ...

    @property
    def better(self) -> Better: ...

    def by_group(self, columns: Columns, group: Groups, groups: int) -> Floats: ...


@dataclass(frozen=True)
class Ratio:
    """Sum of one column over the sum of the weights: its own, where it has such a column."""

    column: str
    better: Better = "lower"
    exponential: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.column, "weight")

    def by_group(self, columns: Columns, group: Groups, groups: int) -> Floats:
        above = np.bincount(group, columns[self.column], groups)
        below = np.bincount(group, columns.get(f"{self.column}_weight", columns["weight"]), groups)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value = above / below
            return np.exp(value) if self.exponential else value


@dataclass(frozen=True)
class Auroc:
    """The chance that a positive example scores above a negative one (ties count half)."""

    better: Better = "higher"

    @property
    def needs(self) -> tuple[str, ...]:
        return ("score", "label")

    def by_group(self, columns: Columns, group: Groups, groups: int) -> Floats:
        """Mann-Whitney's U from the mean ranks within each group."""
        score, label = columns["score"], columns["label"]
        order = np.lexsort((score, group))
        g, s, y = group[order], score[order], label[order]
        start = np.searchsorted(g, np.arange(groups))
        rank = np.arange(len(g)) - start[g] + 1.0
        new = np.r_[True, (g[1:] != g[:-1]) | (s[1:] != s[:-1])] if len(g) else np.zeros(0, bool)
        tie = np.cumsum(new) - 1
        rank = (np.bincount(tie, rank) / np.bincount(tie))[tie] if len(g) else rank
        positive = np.bincount(g, y, groups)
        negative = np.bincount(g, 1 - y, groups)
        u = np.bincount(g, rank * y, groups) - positive * (positive + 1) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(u / (positive * negative))


@dataclass(frozen=True)
class PerClass:
    """From how often each class is there, is predicted, and is both: of class 1 of two, else the mean over classes."""

    value: Callable[[Floats, Floats, Floats], Floats]  # of hits, predicted and true
    macro: bool = False  # the mean over classes, also of two
    better: Better = "higher"

    @property
    def needs(self) -> tuple[str, ...]:
        return ("predicted", "label")

    def by_group(self, columns: Columns, group: Groups, groups: int) -> Floats:
        predicted, label = (columns[name].astype(np.int64) for name in self.needs)
        classes = 1 + max(1, int(max(predicted.max(initial=0), label.max(initial=0))))

        def count(of: NDArray[np.int64], rows: NDArray[np.bool_] | slice = slice(None)) -> Floats:
            at = group[rows] * classes + of[rows]
            return np.bincount(at, minlength=groups * classes).reshape(groups, classes).astype(np.float64)

        hits, said, true = count(label, predicted == label), count(predicted), count(label)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = self.value(hits, said, true)
        if "score" in columns and not self.macro:
            return value[:, 1]
        return _mean_of_known(np.where(np.isnan(value) & (said + true > 0), 0.0, value), axis=1)


@dataclass(frozen=True)
class BalancedAccuracy:
    """The mean recall over the classes that a group has."""

    better: Better = "higher"

    @property
    def needs(self) -> tuple[str, ...]:
        return ("correct", "label")

    def by_group(self, columns: Columns, group: Groups, groups: int) -> Floats:
        label = columns["label"].astype(np.int64)
        classes = 1 + int(label.max(initial=0))
        hits, true = (
            np.bincount(group * classes + label, weights, groups * classes).reshape(groups, classes)
            for weights in (columns["correct"], None)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            return _mean_of_known(hits / true, axis=1)


@dataclass(frozen=True)
class CalibrationError:
    """How far confidence is from accuracy, over bins of equal width. Guo et al. (2017)."""

    bins: int = 15
    better: Better = "lower"

    @property
    def needs(self) -> tuple[str, ...]:
        return ("confidence", "correct")

    def by_group(self, columns: Columns, group: Groups, groups: int) -> Floats:
        place = np.clip(np.ceil(columns["confidence"] * self.bins) - 1, 0, self.bins - 1).astype(np.int64)
        gap = columns["confidence"] - columns["correct"]
        gaps = np.bincount(group * self.bins + place, gap, groups * self.bins).reshape(groups, self.bins)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.abs(gaps).sum(1) / np.bincount(group, minlength=groups))


@dataclass(frozen=True)
class ScoreFunction:
    """A function of a group's scores (what the model puts out, (n, outputs)) and targets."""

    function: Callable[[Any, Any], Any]
    better: Better = "higher"

    @property
    def needs(self) -> tuple[str, ...]:
        return ("out0", "y0")

    def by_group(self, columns: Columns, group: Groups, groups: int) -> Floats:
        scores, targets = _matrix(columns, "out"), _matrix(columns, "y")
        rows = [group == g for g in range(groups)]
        return np.array([float(self.function(scores[r], targets[r])) if r.any() else np.nan for r in rows])


@dataclass(frozen=True)
class OverLabels:
    """The mean over labels, each of which is there or is not, of a metric of two classes."""

    metric: Metric
    better: Better = "higher"

    @property
    def needs(self) -> tuple[str, ...]:
        return ("out0", "y0", "correct")

    def by_group(self, columns: Columns, group: Groups, groups: int) -> Floats:
        values = []
        for k in range(_count(columns, "out")):
            score, label = columns[f"out{k}"], columns[f"y{k}"]
            one = {"score": score, "label": label, "predicted": (score > 0).astype(np.float64)}
            values.append(self.metric.by_group(one, group, groups))
        return _mean_of_known(np.stack(values), axis=0)


def r2(out: Floats, y: Floats) -> float:
    """1 - squared error over squared distance from the mean; the mean over outputs."""
    rest, whole = ((y - out) ** 2).sum(0), ((y - y.mean(0)) ** 2).sum(0)
    return float(np.mean(1 - rest / whole)) if np.all(whole > 0) else float("nan")


def _mean_of_known(values: Floats, axis: int) -> Floats:
    known = ~np.isnan(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(known, values, 0.0).sum(axis) / known.sum(axis))


def _count(columns: Columns, family: str) -> int:
    return sum(name.removeprefix(family).isdecimal() for name in columns if name.startswith(family))


def _matrix(columns: Columns, family: str) -> Floats:
    """Columns out0, out1, ... side by side; a single one as it is."""
    count = _count(columns, family)
    return columns[f"{family}0"] if count == 1 else np.stack([columns[f"{family}{k}"] for k in range(count)], 1)


METRICS: dict[str, Metric] = {
    "accuracy": Ratio("correct", "higher"),
    "loss": Ratio("loss"),
    "mse": Ratio("squared"),
    "mae": Ratio("absolute"),
    "perplexity": Ratio("loss", exponential=True),
    "auroc": Auroc(),
    "balanced_accuracy": BalancedAccuracy(),
    "f1": PerClass(lambda hits, said, true: 2 * hits / (said + true)),
    "f1_macro": PerClass(lambda hits, said, true: 2 * hits / (said + true), macro=True),
    "precision": PerClass(lambda hits, said, true: hits / said),
    "recall": PerClass(lambda hits, said, true: hits / true),
    "ece": CalibrationError(),
    "brier": Ratio("brier"),
    "r2": ScoreFunction(r2),
}
USUAL = ("accuracy", "loss", "mse", "mae", "perplexity", "auroc")  # measured without being asked for
_LOWER = ("loss", "error", "mse", "mae", "perplexity")  # in the name of what should be small


def better(name: str) -> Better:
    """Which direction is better; of a metric that is not listed its name decides.

    >>> better("accuracy"), better("train_loss"), better("clients.mse.mean"), better("word_error")
    ('higher', 'lower', 'lower', 'lower')
    """
    if name in METRICS:
        return METRICS[name].better
    lower = any(word in name for word in _LOWER) or {"ece", "brier"} & set(re.split(r"[._]", name))
    return "lower" if lower else "higher"


def metrics_for(
    kind: str, columns: Mapping[str, object], asked: Mapping[str, Metric] | None = None
) -> dict[str, Metric]:
    """The metrics that make sense for these columns, the most telling one first, and those asked for."""
    several = kind == "regression" and "correct" in columns  # labels, each there or not
    chosen = {**{k: METRICS[k] for k in USUAL}, **(asked or {})}
    if several:
        chosen |= {k: OverLabels(METRICS[k]) for k in ("auroc", "f1")}
    suitable: dict[str, Metric] = {k: m for k, m in chosen.items() if set(m.needs) <= set(columns)}
    if kind != "next_token":
        suitable.pop("perplexity", None)
    top = sorted(int(c[3:]) for c in columns if c.startswith("top"))
    return {**suitable, **{f"top{k}_accuracy": Ratio(f"top{k}", "higher") for k in top}}


def spread(values: Floats, better: Better) -> dict[str, float]:
    """How evenly a metric falls on clients: mean, standard deviation, worst decile, Gini and the extremes."""
    v = values[np.isfinite(values)]
    if not len(v):
        return {}
    ordered = np.sort(v) if better == "higher" else np.sort(v)[::-1]
    worst = ordered[: max(1, int(np.ceil(len(v) / 10)))]
    return {
        "mean": float(v.mean()),
        "std": float(v.std()),
        "min": float(v.min()),
        "max": float(v.max()),
        "median": float(np.median(v)),
        "worst_decile": float(worst.mean()),
        "gini": gini(v),
    }


def gini(values: Floats) -> float:
    """Gini's coefficient: 0 if all have the same, towards 1 if one has everything."""
    v = np.sort(values)
    if v.sum() <= 0:
        return 0.0
    n = len(v)
    return float((2 * np.arange(1, n + 1) - n - 1) @ v / (n * v.sum()))
