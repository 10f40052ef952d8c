"""What it takes to reach a value of the metric: rounds, bytes and virtual seconds, and who never got there."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from atoll.records import Floats, Record, Spent
from atoll.report import prose
from atoll.report.estimates import curve, interval
from atoll.report.metrics import MetricInfo
from atoll.report.seed_groups import Group
from atoll.report.text_table import TextCell, TextTable, number_columns, row, text_columns

_SHARES = (0.5, 0.8, 0.95)  # of the way from the first value to the best
_NOTES = (
    "The first evaluated round that reaches the value; ± is half the width of the 95 % t interval over seeds.",
    ">: some seeds never got there. They count with all that they spent, so the mean is above what is shown.",
)


def spent_cell(spent: Spent, scale: float) -> TextCell:
    """No mean over those alone who got there: that would flatter whoever fails most often."""
    if spent.missed == len(spent.reached):
        return TextCell("not reached")
    estimate = interval([x * scale for x in spent.amounts])
    if estimate is None or not math.isfinite(estimate.mean):
        return TextCell(prose.MISSING)
    text = prose.significant(estimate.mean)
    if spent.missed:
        return TextCell(f"> {text}", remarks=(f"{spent.missed} of {len(spent.reached)} seeds never",))
    half = estimate.half
    if half is None or not math.isfinite(half) or estimate.all_equal:
        return TextCell(text)
    return TextCell(text, prose.significant(half))


def reaching_table(groups: Sequence[Group], metric: MetricInfo) -> TextTable | None:
    """One row for each value and group; None where nothing was measured twice."""
    targets = _targets(groups, metric)
    if not targets:
        return None
    virtual = any(record.series("clock.end").rounds.size for one in groups for record in one.records)
    sent = "MB sent" if all(one.without_server for one in groups) else "MB, up and down"
    costs = [("rounds", "rounds", 1.0), (sent, "bytes", 1e-6), ("virtual seconds", "clock", 1.0)]
    costs = costs if virtual else costs[:2]
    rows = [
        row(
            f"{metric.title} {target * metric.scale:.4g}",
            one.name,
            *(_cell(one, metric, target, c, s) for _, c, s in costs),
        )
        for target in targets
        for one in groups
    ]
    heads = (*text_columns("to reach", "run"), *number_columns(*(title for title, _, _ in costs)))
    return TextTable(heads, tuple(rows), notes=_NOTES)


def _cell(group: Group, metric: MetricInfo, target: float, cost: str, scale: float) -> TextCell:
    spent = [_spent(record, metric, target, cost) for record in group.records]
    return spent_cell(Spent(tuple(x for x, _ in spent), tuple(there for _, there in spent)), scale)


def _spent(record: Record, metric: MetricInfo, target: float, cost: str) -> tuple[float, bool]:
    measured, total = record.series(metric.key), _totals(record, cost)
    there = measured.values >= target if metric.higher_is_better else measured.values <= target
    if not total.size:
        return math.nan, bool(there.any())
    if not there.any():
        return float(total[-1]), False
    return float(total[int(measured.rounds[np.argmax(there)]) - 1]), True


def _totals(record: Record, cost: str) -> Floats:
    """What had been spent after each round."""
    if cost == "rounds":
        return np.arange(1.0, len(record.rounds) + 1)
    if cost == "clock":
        return record.series("clock.end").values
    return np.cumsum(record.bytes_sent())


def _targets(groups: Sequence[Group], metric: MetricInfo) -> list[float]:
    """Values on the way from where the groups begin to the best mean of any; three digits each."""
    curves = [c for one in groups if (c := curve(one, metric.key)).rounds.size > 1]
    if not curves:
        return []
    pick = np.nanmax if metric.higher_is_better else np.nanmin
    first = float(np.mean([c.mean[0] for c in curves]))
    means = np.concatenate([c.mean for c in curves])
    if not math.isfinite(first) or not np.isfinite(means).any():
        return []
    best = float(pick(means))
    gained = best > first if metric.higher_is_better else best < first
    return [float(f"{first + share * (best - first):.3g}") for share in _SHARES] if gained else []
