"""The page of an attack on privacy: originals beside reconstructions, scores, and leakage against utility."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from atoll.errors import RecordError
from atoll.report import theme
from atoll.report.plots import Plot
from atoll.report.render_html import fact_table, template
from atoll.report.text_table import TextTable

if TYPE_CHECKING:  # matplotlib is slow to import: only what draws does
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
SHOWN, COLUMNS = 32, 16  # pictures on a page, and in a row of it
_WIDTH = 7.2  # inches


@dataclass(frozen=True)
class LeakagePoint:
    """One defence: what an attack found under it, and what the same experiment reached."""

    name: str
    leakage: float
    interval: tuple[float, float]
    utility: float


def reconstructions(originals: Floats, found: Floats, title: str = "Originals and reconstructions") -> Plot:
    """Rows of originals, each with a row of what the attack made of them below, from images (E, C, H, W) in 0..1."""
    if originals.ndim != 4 or originals.shape != found.shape or not len(originals):
        raise RecordError(
            f"reconstructions: images of shape {originals.shape} and {found.shape}. Give (images, channels, H, W)."
        )
    n = min(len(originals), SHOWN)
    error = ((originals[:n] - found[:n]) ** 2).mean((1, 2, 3))
    return Plot(
        "reconstructions",
        title,
        f"{n} of {len(originals)} pictures: above the original, below what the attack made of the update.",
        f"{n} originals and reconstructions; mean squared errors from {error.min():.2g} to {error.max():.2g}.",
        lambda: _draw_pairs(_grey_or_rgb(originals[:n]), _grey_or_rgb(found[:n])),
    )


def leakage_plot(points: Sequence[LeakagePoint], leakage: str, utility: str) -> Plot:
    """Every defence as a point: leakage to the right, utility up."""
    worst = max(points, key=lambda p: p.leakage)
    return Plot(
        "leakage",
        "Leakage against utility",
        f"{leakage} of the attack, with 95 % intervals, against {utility} of the same run. Top left is best.",
        f"{len(points)} defences; the most leaks under {worst.name!r} ({worst.leakage:.2f}).",
        lambda: _draw_leakage(points, leakage, utility),
    )


def attack_page(
    title: str,
    lead: str,
    facts: Sequence[tuple[str, str]],
    plots: Sequence[Plot],
    tables: Sequence[TextTable] = (),
    knows: Sequence[str] = (),
) -> str:
    """One HTML file that opens offline."""
    return template("attack").render(
        title=title, lead=lead, facts=fact_table(facts), plots=plots, tables=tables, knows=knows
    )


def _grey_or_rgb(images: Floats) -> Floats:
    """(E, H, W) or (E, H, W, 3)."""
    return np.moveaxis(images, 1, -1) if images.shape[1] == 3 else images[:, 0]


def _draw_pairs(originals: Floats, found: Floats) -> Figure:
    E, H, W = originals.shape[:3]
    rows, gap = -(-E // COLUMNS), max(1, H // 14)
    columns = min(E, COLUMNS)
    mosaic = np.ones((rows * (2 * H + 3 * gap) - 2 * gap, columns * (W + gap) - gap, *originals.shape[3:]))
    for e in range(E):
        top, left = e // COLUMNS * (2 * H + 3 * gap), e % COLUMNS * (W + gap)
        mosaic[top : top + H, left : left + W] = np.clip(originals[e], 0, 1)
        mosaic[top + H + gap : top + 2 * H + gap, left : left + W] = np.clip(found[e], 0, 1)
    figure, axes = theme.canvas(_WIDTH, min(8.0, 0.2 + _WIDTH * mosaic.shape[0] / mosaic.shape[1]))
    axes.imshow(mosaic, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_axis_off()
    return figure


def _draw_leakage(points: Sequence[LeakagePoint], leakage: str, utility: str) -> Figure:
    figure, axes = theme.canvas(_WIDTH, 3.6 + 0.2 * (len(points) // 2))
    for number, point in enumerate(points):  # colours come again after a few: a number tells them apart
        style = {**theme.line_style(number), "linestyle": "none"}
        at, name = (point.leakage, point.utility), str(number + 1)
        axes.annotate(name, at, (3, 3), textcoords="offset points", fontsize=8)
        error = [[point.leakage - point.interval[0]], [point.interval[1] - point.leakage]]
        axes.errorbar(
            [point.leakage], [point.utility], xerr=error, label=f"{name}: {point.name}", elinewidth=0.8, **style
        )
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel(f"{leakage} (leakage)")
    axes.set_ylabel(f"{utility} (utility)")
    figure.legend(loc="outside lower center", ncols=2)
    return figure
