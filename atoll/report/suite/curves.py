"""Learning curves: one small figure per row and kind of cost, the mean over seeds with its band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from atoll.records import Cell, Floats, Results, Trace
from atoll.report import prose, theme
from atoll.report.metrics import suite_metric
from atoll.report.plots import Plot
from atoll.stats import half_width

By = Literal["rounds", "bytes", "seconds"]
BY: Mapping[By, str] = {"rounds": "round", "bytes": "MB sent, up and down", "seconds": "seconds of training, per run"}
MOST = 18  # rows that are drawn: a page stays small
POINTS = 40  # of a curve: more cannot be seen at this size
WIDTH, HEIGHT = 3.4, 2.2  # inches


@dataclass(frozen=True)
class MethodLine:
    """One method in one row: the mean over seeds, and half the width of its interval (None for a single seed)."""

    method: str
    x: Floats
    mean: Floats
    half: Floats | None


def curves(results: Results, block: str, by: By, styles: Mapping[str, int]) -> list[Plot]:
    """A figure for each row of a block that has runs; `styles`: the number of a method's line style."""
    rows = {row: _lines(results, cells, by) for row, cells in results.rows(block).items()}
    return [_plot(results, block, row, lines, by, styles) for row, lines in rows.items() if lines]


def method_styles(results: Results) -> dict[str, int]:
    """Every method has one line style in all figures of a page."""
    return {method: i for i, method in enumerate(dict.fromkeys(cell.method for cell in results.cells))}


def line(method: str, runs: Sequence[Trace], by: By, scale: float) -> MethodLine | None:
    """The mean over runs at the rounds that all of them have; costs are means over runs too."""
    common = sorted(set.intersection(*(set(run.rounds) for run in runs))) if runs else []
    if not common:
        return None
    rounds = [common[i] for i in np.unique(np.linspace(0, len(common) - 1, min(len(common), POINTS)).astype(int))]
    values = np.array([_at(run, run.values, rounds) for run in runs]) * scale
    return MethodLine(
        method, np.mean([_cost(run, by, rounds) for run in runs], axis=0), values.mean(axis=0), half_width(values)
    )


def _lines(results: Results, cells: Mapping[str, Cell], by: By) -> list[MethodLine]:
    candidates = [line(method, cell.runs, by, results.scale) for method, cell in cells.items()]
    return [one for one in candidates if one is not None]


def _cost(run: Trace, by: By, rounds: Sequence[int]) -> Floats:
    """Rounds, megabytes, or the run's share of its stack's seconds."""
    if by == "rounds":
        return np.asarray(rounds, np.float64)
    return _at(run, run.bytes, rounds) / 1e6 if by == "bytes" else _at(run, run.seconds, rounds) / run.together


def _at(run: Trace, series: Sequence[float], rounds: Sequence[int]) -> Floats:
    where = dict(zip(run.rounds, series, strict=True))
    return np.array([where[r] for r in rounds], np.float64)


def _plot(
    results: Results, block: str, row: tuple[str, ...], lines: Sequence[MethodLine], by: By, styles: Mapping[str, int]
) -> Plot:
    ends = "; ".join(f"{one.method} from {one.mean[0]:.4g} to {one.mean[-1]:.4g}" for one in lines)
    place = list(results.rows(block)).index(row)
    return Plot(
        f"curve-{results.blocks().index(block)}-{place}-{by}",
        prose.row_name(row),
        "",
        f"{suite_metric(results).unit} against {BY[by]}, {prose.row_name(row)}: {ends}.",
        lambda: _draw(results, lines, by, styles),
    )


def _draw(results: Results, lines: Sequence[MethodLine], by: By, styles: Mapping[str, int]) -> Figure:
    figure, axes = theme.canvas(WIDTH, HEIGHT)
    for one in lines:
        style = theme.line_style(styles[one.method])
        axes.plot(one.x, one.mean, markevery=max(1, len(one.x) // 5), markersize=3.2, **style)
        if one.half is not None:
            low, high = one.mean - one.half, one.mean + one.half
            axes.fill_between(one.x, low, high, color=style["color"], alpha=0.13, linewidth=0)
    _limit(axes, lines, results)
    axes.set_xlabel(BY[by])
    axes.set_ylabel(suite_metric(results).unit)
    axes.xaxis.set_major_locator(MaxNLocator(integer=by == "rounds", nbins=5, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    ends = [float(one.x[-1]) for one in lines if one.x[-1] > 0]
    if by != "rounds" and len(ends) > 1 and max(ends) > 20 * min(ends):
        theme.logarithmic(axes, "x")
    return figure


def _limit(axes: Axes, lines: Sequence[MethodLine], results: Results) -> None:
    """Room for the means first: the interval of two seeds may be wide and must not flatten every curve."""
    means = np.concatenate([one.mean[np.isfinite(one.mean)] for one in lines])
    if not means.size:
        return
    if results.scale != 100 and means.min() > 0 and means.max() > 100 * means.min():
        theme.logarithmic(axes, "y")
        return
    pad = 0.08 * float(means.max() - means.min()) or 0.05 * abs(float(means.max())) or 1.0
    low, high = float(means.min()) - pad, float(means.max()) + pad
    axes.set_ylim((max(low, 0.0), min(high, 100.5)) if results.scale == 100 else (low, high))


def swatch(number: int) -> str:
    """A piece of a method's line for a legend in the page."""
    style = theme.line_style(number)
    dashes = style["linestyle"]
    pattern = "" if dashes == "-" else f' stroke-dasharray="{" ".join(str(1.6 * d) for d in dashes[1])}"'
    color = f"var(--series-{number % len(theme.SERIES)})"
    line_ = f'<line x1="0" y1="6" x2="34" y2="6" stroke="{color}" stroke-width="2"{pattern}/>'
    return f'<svg class="swatch" viewBox="0 0 34 12" aria-hidden="true">{line_}{_marker(style["marker"], color)}</svg>'


def _marker(name: str, color: str) -> str:
    shapes = {
        "o": '<circle cx="17" cy="6" r="3.4" {}/>',
        "s": '<rect x="14" y="3" width="6" height="6" {}/>',
        "^": '<path d="M13 9.5 17 2.5 21 9.5z" {}/>',
        "D": '<path d="M17 1.8 21.2 6 17 10.2 12.8 6z" {}/>',
        "v": '<path d="M13 2.5 17 9.5 21 2.5z" {}/>',
        "P": '<path d="M15.6 2h2.8v2.6H21v2.8h-2.6V10h-2.8V7.4H13V4.6h2.6z" {}/>',
        "X": '<path d="M13.5 2.5 20.5 9.5M20.5 2.5 13.5 9.5" stroke="{1}" stroke-width="2.4"/>',
    }
    return shapes[name].format(f'fill="{color}"', color)
