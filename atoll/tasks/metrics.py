"""Metrics from measured columns: sums over any group of examples, merged first and divided last.

A column is one number per example. Grouped by client, a metric is per-client; with everyone in one group it is
central (pfl-research's two kinds).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Columns = Mapping[str, NDArray[np.float64]]
Groups = NDArray[np.int64]


class Metric(Protocol):
    """`needs` columns; gives one number per group, NaN where a group has nothing to say."""

    @property
    def needs(self) -> tuple[str, ...]: ...

    @property
    def better(self) -> Literal["higher", "lower"]: ...

    def by_group(self, columns: Columns, group: Groups, groups: int) -> NDArray[np.float64]: ...


@dataclass(frozen=True)
class Ratio:
    """Sum of one column over the sum of the weights: its own, where it has such a column."""

    column: str
    better: Literal["higher", "lower"] = "lower"
    exponential: bool = False

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.column, "weight")

    def by_group(self, columns: Columns, group: Groups, groups: int) -> NDArray[np.float64]:
        above = np.bincount(group, columns[self.column], groups)
        below = np.bincount(group, columns.get(f"{self.column}_weight", columns["weight"]), groups)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            value = above / below
            return np.exp(value) if self.exponential else value


@dataclass(frozen=True)
class Auroc:
    """The chance that a positive example scores above a negative one (ties count half)."""

    better: Literal["higher", "lower"] = "higher"

    @property
    def needs(self) -> tuple[str, ...]:
        return ("score", "label")

    def by_group(self, columns: Columns, group: Groups, groups: int) -> NDArray[np.float64]:
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


METRICS: dict[str, Metric] = {
    "accuracy": Ratio("correct", "higher"),
    "loss": Ratio("loss"),
    "mse": Ratio("squared"),
    "mae": Ratio("absolute"),
    "perplexity": Ratio("loss", exponential=True),
    "auroc": Auroc(),
}


def metrics_for(kind: str, columns: Mapping[str, object]) -> dict[str, Metric]:
    """The metrics that make sense for these columns, the most telling one first."""
    suitable: dict[str, Metric] = {k: m for k, m in METRICS.items() if set(m.needs) <= set(columns)}
    if kind != "next_token":
        suitable.pop("perplexity", None)
    top = sorted(int(c[3:]) for c in columns if c.startswith("top"))
    return {**suitable, **{f"top{k}_accuracy": Ratio(f"top{k}", "higher") for k in top}}


def spread(values: NDArray[np.float64], better: Literal["higher", "lower"]) -> dict[str, float]:
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


def gini(values: NDArray[np.float64]) -> float:
    """Gini's coefficient: 0 if all have the same, towards 1 if one has everything."""
    v = np.sort(values)
    if v.sum() <= 0:
        return 0.0
    n = len(v)
    return float((2 * np.arange(1, n + 1) - n - 1) @ v / (n * v.sum()))
