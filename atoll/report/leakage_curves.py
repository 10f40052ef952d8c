"""Scores of attacks on privacy against what is varied: one panel for each score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.report import theme
from atoll.report.plots import Plot

if TYPE_CHECKING:  # matplotlib is slow to import: only what draws does
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"label_accuracy": "labels found", "l2": "L2", "mse": "MSE", "psnr": "PSNR, dB", "ssim": "SSIM"}
_WIDTH, _HEIGHT = 7.2, 3.4  # inches
_LOG = 5.0  # x from the smallest to so many times it, or more, is drawn on a logarithmic axis


@dataclass(frozen=True)
class LeakageCurve:
    """One line: for every score its points, x, mean and half of the interval."""

    name: str
    scores: Mapping[str, Sequence[tuple[float | str, float, float]]]


def leakage_curves(curves: Sequence[LeakageCurve], scores: Sequence[str], x: str, title: str) -> Plot:
    """Every curve in every panel."""
    panels = ", ".join(NAMES.get(score, score) for score in scores)
    return Plot(
        "leakage",
        title,
        f"{panels} of each attack, the mean over victims with its 95 % interval.",
        f"{len(curves)} attacks against {x}.",
        lambda: _draw(curves, scores, x),
    )


def _draw(curves: Sequence[LeakageCurve], scores: Sequence[str], x: str) -> Figure:
    theme.load_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, _HEIGHT + 0.2 * (len(curves) // 2)), layout="constrained")
    panels = figure.subplots(1, len(scores), squeeze=False)[0]
    for axes, score in zip(panels, scores, strict=True):
        _panel(axes, curves, score)
        axes.set_xlabel(x)
        axes.set_ylabel(NAMES.get(score, score))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _panel(axes: Axes, curves: Sequence[LeakageCurve], score: str) -> None:
    numbers: list[float] = []
    for number, curve in enumerate(curves):
        points = curve.scores.get(score, ())
        if points:
            xs, means, halves = zip(*points, strict=True)
            named = any(isinstance(at, str) for at in xs)  # names have no order that a line could follow
            style = {**theme.line_style(number), **({"linestyle": "none"} if named else {})}
            axes.errorbar(xs, means, yerr=halves, label=curve.name, elinewidth=0.8, **style)
            axes.tick_params(axis="x", labelrotation=40 if named else 0)
            numbers += [at for at in xs if not isinstance(at, str)]
    if numbers and min(numbers) > 0 and max(numbers) >= _LOG * min(numbers):
        axes.set_xscale("log")
        ticks = sorted(set(numbers))
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
