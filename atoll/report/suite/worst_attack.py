"""The worst over an axis, where a suite asks: heat maps, the worst attack of every defence and of its best setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib import colormaps
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from atoll.records import BestSetting, Results, ScoreGrid, WorstCase, best_settings, grids, worst_by_method
from atoll.report import prose, theme
from atoll.report.metrics import suite_metric
from atoll.report.plots import Plot
from atoll.report.text_table import TextCell, TextTable, number_columns, row, text_columns

COLUMN, ROW, LABELS = 0.48, 0.26, 1.5  # inches
WORST = "worst"
_COLOURS, _NOTHING = "cividis", "#8a8f98"  # readable in print and by all kinds of colour vision
_LIGHT, _DARK = "#fffffe", "#0a0a0b"  # colours of the figure itself: they stay as they are in a dark page


@dataclass(frozen=True)
class WorstSection:
    """What the section shows."""

    told: str
    figures: tuple[Plot, ...]
    worst: TextTable
    best: TextTable | None  # None where every method has one setting


def section(results: Results) -> WorstSection | None:
    """All of it; None where the suite asks for no worst, or nothing was run."""
    found = [grid for grid in grids(results) if grid.values]
    if not found:
        return None
    limits = _limits(results, found)
    shown = [grid for grid in found if len(grid.under) > 1]
    figures = tuple(_plot(results, grid, number, limits) for number, grid in enumerate(shown))
    return WorstSection(_told(results), figures, worst_table(results, found), best_table(results, found))


def _told(results: Results) -> str:
    axis, method = results.worst_over, results.axes[-1]
    return (
        f"{prose.first_up(suite_metric(results).unit)} on test data at the last round, mean over seeds, by {axis} and "
        f"{method}. The worst {axis} of a {method} is what it withstands; "
        "a cell of which a seed diverged is worse than any number."
    )


def worst_table(results: Results, found: Sequence[ScoreGrid]) -> TextTable:
    """The worst of every method, grid by grid."""
    methods = list(dict.fromkeys(m for grid in found for m in grid.methods))
    lines = []
    for grid in found:
        worst = worst_by_method(grid, results.higher)
        lines.append(row(prose.row_name(grid.at), *(_worst_entry(worst.get(m), len(grid.under)) for m in methods)))
    note = f"In parentheses the {results.worst_over} under which it is worst."
    heads = (*text_columns(_corner(results)), *number_columns(*methods))
    return TextTable(heads, tuple(lines), notes=(note,), style="wide")


def best_table(results: Results, found: Sequence[ScoreGrid]) -> TextTable | None:
    """The same with the best setting of every family (ByzFL's view); None where no method has two."""
    chosen = [best_settings(worst_by_method(grid, results.higher), results.higher) for grid in found]
    families = list(dict.fromkeys(name for best in chosen for name in best))
    if len(families) == len({m for grid in found for m in grid.methods}):
        return None
    lines = (
        row(prose.row_name(grid.at), *(_best_entry(best.get(f), f, len(grid.under)) for f in families))
        for grid, best in zip(found, chosen, strict=True)
    )
    note = (
        f"Of several settings of a {results.axes[-1]} the one whose worst {results.worst_over} is least bad: chosen on "
        "the test data, so it flatters who has more of them."
    )
    heads = (*text_columns(_corner(results)), *number_columns(*families))
    return TextTable(heads, tuple(lines), notes=(note,), style="wide")


def _corner(results: Results) -> str:
    return " / ".join(axis for axis in results.axes[:-1] if axis != results.worst_over) or "setting"


def _worst_entry(case: WorstCase | None, choices: int, also: Sequence[str] = ()) -> TextCell:
    if case is None:
        return TextCell(prose.MISSING, style="soft")
    remarks = (*also, *([case.under] if choices > 1 else []))
    return TextCell(prose.number(case.value, 1), remarks=remarks, value=case.value)


def _best_entry(best: BestSetting | None, family: str, choices: int) -> TextCell:
    if best is None:
        return TextCell(prose.MISSING, style="soft")
    return _worst_entry(best.worst, choices, () if best.method == family else (best.method,))


def _limits(results: Results, found: Sequence[ScoreGrid]) -> tuple[float, float]:
    """The same colours in all figures."""
    if results.scale == 100:
        return 0.0, 100.0
    finite = [value for grid in found for value in grid.values.values() if math.isfinite(value)] or [0.0]
    return min(finite), max(finite)


def _plot(results: Results, grid: ScoreGrid, number: int, limits: tuple[float, float]) -> Plot:
    worst = worst_by_method(grid, results.higher)
    said = "; ".join(f"{m} {prose.number(case.value, 1)} under {case.under}" for m, case in worst.items())
    name = prose.row_name(grid.at)
    alt = f"{suite_metric(results).unit} by {results.worst_over} and {results.axes[-1]}, {name}. The worst: {said}."
    return Plot(f"worst-{number}", name, "", alt, lambda: _draw(grid, worst, limits, results.higher))


def _draw(grid: ScoreGrid, worst: Mapping[str, WorstCase], limits: tuple[float, float], higher: bool) -> Figure:
    rows = (*grid.under, WORST)
    figure, axes = theme.canvas(LABELS + COLUMN * len(grid.methods), LABELS + ROW * len(rows))
    colours, norm = colormaps[_COLOURS if higher else f"{_COLOURS}_r"], Normalize(*limits)
    for x, method in enumerate(grid.methods):
        column = {**grid.column(method), WORST: worst[method].value}
        for y, name in enumerate(rows):
            value = column.get(name)
            if value is None:
                continue
            top = y + 0.15 if name == WORST else y  # the last row stands apart
            diverged = math.isnan(value)
            face = _NOTHING if diverged else colours(norm(value))
            axes.fill([x, x + 1, x + 1, x], [top, top, top + 1, top + 1], color=face, linewidth=0)
            ink = _DARK if diverged or norm(value) > 0.55 else _LIGHT
            text = "div." if diverged else f"{value:.0f}" if limits[1] >= 10 else f"{value:.2g}"
            axes.text(x + 0.5, top + 0.52, text, ha="center", va="center", color=ink, fontsize=8)
    axes.set_xlim(0, len(grid.methods))
    axes.set_ylim(len(rows) + 0.15, 0)
    axes.set_xticks([x + 0.5 for x in range(len(grid.methods))], grid.methods, rotation=40, ha="right")
    axes.set_yticks([y + 0.5 for y in range(len(grid.under))] + [len(rows) - 0.35], rows)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    return figure
