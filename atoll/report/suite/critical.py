"""The critical-difference plot: average ranks on a line, methods that cannot be told apart joined by a bar.

Demsar, Statistical comparisons of classifiers over multiple data sets (JMLR 7, 2006).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from atoll.report import prose, theme
from atoll.report.plots import Plot
from atoll.stats import critical_difference, not_different

AXIS = 2.4  # inches
STEP, LETTER = 0.24, 0.075  # inches of a line of text and of a letter


def critical(ranks: Mapping[str, float], rows: int) -> Plot:
    """The plot of these average ranks over so many rows."""
    cd = critical_difference(len(ranks), rows)
    order = sorted(ranks, key=lambda method: ranks[method])
    groups = not_different([ranks[method] for method in order], cd)
    listed = "; ".join(f"{method} {ranks[method]:.2f}" for method in order)
    joined = "; ".join(prose.listed(order[i] for i in group) for group in groups)
    return Plot(
        "critical",
        "Average ranks",
        f"The best is on the left. A thick bar joins methods whose ranks differ by less than the critical difference "
        f"{cd:.2f} (Nemenyi's test at 5 %, {prose.counted(rows, 'row')}): they cannot be told apart by ranks alone.",
        f"Average ranks: {listed}. Not told apart: {joined or 'none'}.",
        lambda: _draw(ranks, order, groups, cd),
    )


def _draw(ranks: Mapping[str, float], order: Sequence[str], groups: Sequence[Sequence[int]], cd: float) -> Figure:
    k, half = len(order), (len(order) + 1) // 2
    below = 0.9 + 0.6 * len(groups)
    lines = 3.6 + below + half - 0.3
    label = 0.4 + LETTER * max(len(method) + 6 for method in order)  # inches on either side
    figure = Figure(figsize=(AXIS + 2 * label, STEP * lines))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.axis("off")
    margin = label / AXIS * (k - 1)
    axes.set_xlim(1 - margin, k + margin)
    axes.set_ylim(lines - 3.6, -3.6)  # lines of text, downwards; the axis is at 0
    _scale(axes, k, cd)
    for place, method in enumerate(order):
        left = place < half
        depth = below + (place if left else k - 1 - place)
        _method(axes, ranks[method], f"{method}  {ranks[method]:.2f}", depth, 0.05 * (k - 1), (1 if left else k), left)
    for number, group in enumerate(groups):
        ends = [ranks[order[group[0]]] - 0.03, ranks[order[group[-1]]] + 0.03]
        axes.plot(ends, [0.5 + 0.6 * number] * 2, color=theme.SERIES[1], linewidth=4, solid_capstyle="butt")
    return figure


def _scale(axes: Axes, k: int, cd: float) -> None:
    axes.plot([1, k], [0, 0], color=theme.INK, linewidth=1)
    for rank in range(1, k + 1):
        axes.plot([rank, rank], [0, -0.35], color=theme.INK, linewidth=1)
        axes.text(rank, -0.5, str(rank), ha="center", va="bottom", size=9)
    end = min(1 + cd, k + 0.1)
    axes.plot([1, end], [-1.9, -1.9], color=theme.INK, linewidth=1.4)
    for at in (1, end):
        axes.plot([at, at], [-2.1, -1.7], color=theme.INK, linewidth=1.4)
    label = f"critical difference {cd:.2f}" + (" (wider than the scale)" if end < 1 + cd else "")
    axes.text(1, -2.2, label, ha="left", va="bottom", size=9)


def _method(axes: Axes, rank: float, label: str, depth: float, gap: float, side: float, left: bool) -> None:
    out = side - gap if left else side + gap
    axes.plot([rank, rank, out], [0, depth, depth], color=theme.SERIES[5], linewidth=0.9)
    axes.plot([rank], [0], "o", color=theme.SERIES[0], markersize=5)
    axes.text(
        out + (-gap / 2 if left else gap / 2), depth, label, ha="right" if left else "left", va="center", size=9.5
    )
