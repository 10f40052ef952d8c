"""How settings were found: the budget, what it cost, and how much a wrong setting loses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from atoll.records import Cell, Results, Trial
from atoll.report import prose, theme
from atoll.report.metrics import suite_metric
from atoll.report.plots import Plot
from atoll.report.text_table import TextRow, TextTable, row, text_columns

WAYS = {
    "validation": "chosen on validation data, examples kept from training",
    "paper": "the paper's way: best on the test data, which flatters every method that is tuned",
    "none": "as the suite gives them; nothing was tuned",
}


@dataclass(frozen=True)
class Tried:
    """One cell's trials: the settings in words, their shown scores, and which was chosen."""

    cell: Cell
    labels: tuple[str, ...]
    scores: tuple[float, ...]
    chosen: int | None
    higher: bool

    @property
    def lost(self) -> tuple[float, ...]:
        """How far each score stays behind the cell's best: 0 for that one, below 0 for the others."""
        finite = [one for one in self.scores if math.isfinite(one)]
        top = (max if self.higher else min)(finite, default=math.nan)
        return tuple(-abs(one - top) for one in self.scores)


def tried(results: Results) -> list[Tried]:
    """Every cell with more than one trial."""
    return [_tried(results, cell) for cell in results.cells if len(cell.trials) > 1]


def tried_table(results: Results) -> TextTable | None:
    """Every setting that was tried, cell by cell; None where none was."""
    heads = text_columns("cell", "chosen", "score of each setting that was tried")
    rows = tuple(_row(one) for one in tried(results))
    return TextTable(heads, rows) if rows else None


def budget(results: Results) -> str:
    """In words: how settings were chosen, and with how many trials for each method."""
    sentence = f"Settings: {WAYS[results.tuning]}."
    counts: dict[int, list[str]] = {}
    for cell in results.cells:
        counts.setdefault(len(cell.trials), [])
        if cell.method not in counts[len(cell.trials)]:
            counts[len(cell.trials)].append(cell.method)
    if results.tuning == "none" or set(counts) <= {0}:
        return sentence
    parts = [
        f"{prose.counted(n, 'trial')} for {prose.listed(counts[n])}" for n in sorted(counts, reverse=True) if n > 1
    ]
    few = list(dict.fromkeys(m for n in (0, 1) for m in counts.get(n, [])))
    parts += [f"not tuned: {prose.listed(few)}"] if few else []
    uneven = " The budgets are not equal." if len([n for n in counts if n > 1]) > 1 else ""
    return f"{sentence} {'; '.join(parts)[0].upper()}{'; '.join(parts)[1:]}.{uneven}"


def sensitivity(results: Results) -> list[Plot]:
    """A figure per tuned method: how much each setting loses against the best one, a line for every row."""
    by_method: dict[tuple[str, tuple[str, ...]], list[Tried]] = {}
    for one in tried(results):
        by_method.setdefault((one.cell.method, one.labels), []).append(one)
    return [_plot(results, i, method, ones) for i, ((method, _), ones) in enumerate(by_method.items())]


def _tried(results: Results, cell: Cell) -> Tried:
    trials = _ordered(cell.trials)
    labels = tuple(prose.settings(trial.settings) for trial in trials)
    chosen = next((i for i, trial in enumerate(trials) if dict(trial.settings) == dict(cell.settings)), None)
    return Tried(cell, labels, tuple(trial.score * results.scale for trial in trials), chosen, results.higher)


def _row(one: Tried) -> TextRow:
    scores = (f"{label}: {prose.number(score, 2)}" for label, score in zip(one.labels, one.scores, strict=True))
    return row(one.cell.name, prose.MISSING if one.chosen is None else one.labels[one.chosen], " · ".join(scores))


def _ordered(trials: Sequence[Trial]) -> list[Trial]:
    """By value where a single number was tried, else as they were tried."""
    tried_values = [_only_number(trial.settings) for trial in trials]
    if any(number is None for number in tried_values):
        return list(trials)
    order = sorted(range(len(trials)), key=lambda i: tried_values[i] or 0.0)
    return [trials[i] for i in order]


def _only_number(settings: Mapping[str, Any]) -> float | None:
    values = list(settings.values())
    plain = len(values) == 1 and isinstance(values[0], int | float) and not isinstance(values[0], bool)
    return float(values[0]) if plain else None


def _plot(results: Results, number: int, method: str, ones: Sequence[Tried]) -> Plot:
    lost = np.array([one.lost for one in ones])
    typical = [_median(column[np.isfinite(column)].tolist()) for column in lost.T]
    medians = "; ".join(f"{label}: {value:.3g}" for label, value in zip(ones[0].labels, typical, strict=True))
    points = "percentage points" if results.scale == 100 else "points"
    on = "validation data" if results.tuning == "validation" else "the test data"
    rows = f"A thin line is one row ({len(ones)} in all), the thick one their median; a ring is the setting chosen."
    return Plot(
        f"tuning-{number}",
        method,
        f"{suite_metric(results).title.capitalize()} on {on} against the best setting of the same row. {rows}",
        f"{method}: {points} against the best setting, median over rows: {medians}.",
        lambda: _draw(results, ones, lost, typical),
    )


def _draw(results: Results, ones: Sequence[Tried], lost: Any, typical: Any) -> Figure:
    labels = ones[0].labels
    figure, axes = theme.canvas(4.2, 2.4)
    places = np.arange(len(labels))
    for one, line in zip(ones, lost, strict=True):
        axes.plot(places, line, color=theme.SERIES[5], linewidth=0.8, alpha=0.6)
        if one.chosen is not None:
            ring: dict[str, Any] = {
                "markerfacecolor": "none",
                "markeredgecolor": theme.SERIES[1],
                "markersize": 7,
                "alpha": 0.8,
            }
            axes.plot([one.chosen], [line[one.chosen]], "o", **ring)
    axes.plot(places, typical, color=theme.SERIES[0], linewidth=2.2, marker="o")
    keys, values = zip(*(_apart(label) for label in labels), strict=True)
    alike = len(set(keys)) == 1
    axes.set_xticks(places, ["\n".join(v) for v in values] if alike else [x.replace(", ", "\n") for x in labels])
    axes.set_xlabel(", ".join(keys[0]) if alike else "setting")
    axes.set_ylabel("against the best")
    return figure


def _median(values: Sequence[float]) -> float:
    return median(values) if values else math.nan  # a setting that diverged everywhere leaves a gap


def _apart(label: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names and the values of a setting.

    >>> _apart("lr = 0.1, mu = 1")
    (('lr', 'mu'), ('0.1', '1'))
    """
    pairs = [part.partition(" = ") for part in label.split(", ")]
    return tuple(name for name, _, _ in pairs), tuple(value for _, _, value in pairs)
