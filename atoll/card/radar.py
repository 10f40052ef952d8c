"""The radar chart of a card: one for each method, with the interval of every axis as a band."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from atoll.card.score_card import ScoreCard
from atoll.report import Plot, series_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIDE = 3.4  # inches
LINK = "axis-"  # what an axis's section is called in the page


def radar(card: ScoreCard) -> Plot:
    """All methods side by side."""
    said = "; ".join(f"{m}: {', '.join(_words(card, m))}" for m in card.methods)
    caption = f"Scores from 0 to {card.profile.scale:g}; the band is the 95 % interval over {len(card.seeds)} seeds."
    if len(card.seeds) == 1:
        caption = f"Scores from 0 to {card.profile.scale:g}; one seed, so no interval."
    return Plot(
        "radar", "The card", f"{caption} A click on an axis opens the table behind it.", said, lambda: _draw(card)
    )


def _words(card: ScoreCard, method: str) -> list[str]:
    found = [(axis, card.scores[method][axis].estimate) for axis in card.axes]
    return [f"{axis} {e.mean:.2f}" if e else f"{axis} not measured" for axis, e in found]


def _draw(card: ScoreCard) -> Figure:
    from matplotlib.figure import Figure

    columns = min(3, len(card.methods))
    lines = -(-len(card.methods) // columns)
    figure = Figure(figsize=(SIDE * columns + 0.6, SIDE * lines), layout="constrained")
    for number, method in enumerate(card.methods):
        axes = figure.add_subplot(lines, columns, number + 1, projection="polar")
        _one(axes, card, method, number)
    return figure


def _one(axes, card: ScoreCard, method: str, number: int) -> None:  # type: ignore[no-untyped-def]
    names = card.axes
    angles = np.linspace(0, 2 * np.pi, len(names), endpoint=False)
    found = [card.scores[method][axis].estimate for axis in names]
    means = np.array([e.mean if e else 0.0 for e in found])
    low = np.array([e.low if e and e.low is not None else m for e, m in zip(found, means, strict=True)])
    high = np.array([e.high if e and e.high is not None else m for e, m in zip(found, means, strict=True)])
    style = series_style(number)
    closed = np.append(angles, angles[0])
    axes.set_theta_offset(np.pi / 2)
    axes.set_theta_direction(-1)
    axes.set_ylim(0, card.profile.scale)
    axes.set_yticks(card.profile.scale * np.array([0.25, 0.5, 0.75, 1.0]))
    axes.tick_params(axis="y", labelsize=7)
    axes.patch.set_alpha(0.0)
    axes.plot(closed, np.append(means, means[0]), **style)
    if len(card.seeds) > 1:
        axes.fill_between(
            closed, np.append(low, low[0]), np.append(high, high[0]), color=style["color"], alpha=0.18, lw=0
        )
    axes.fill(closed, np.append(means, means[0]), color=style["color"], alpha=0.08, lw=0)
    axes.set_xticks(angles)
    axes.tick_params(axis="x", pad=5)
    labels = [f"{name}\n{e.mean:.2f}" if e else f"{name}\nnot measured" for name, e in zip(names, found, strict=True)]
    for label, name, angle in zip(axes.set_xticklabels(labels), names, angles, strict=True):
        aside = float(np.sin(angle))  # labels beside the circle begin, or end, where it ends
        label.set_horizontalalignment("center" if abs(aside) < 0.1 else "left" if aside > 0 else "right")
        label.set_url(f"#{LINK}{name}")
        label.set_fontsize(8.5)
    axes.set_title(method, fontsize=10, pad=14, fontweight="bold")
