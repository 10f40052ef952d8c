"""Figures of what was spent: the metric against epsilon, epsilon by round, and the signal beside the noise.

A group's epsilon is drawn only if its claim holds for every seed. What is only simulated has figures of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from atoll.records import CLAIM_KINDS, EPSILON_KEYS, SIMULATION, ClaimKind, Floats, round_up
from atoll.report import theme
from atoll.report.estimates import SeedCurve, curve
from atoll.report.metrics import MetricInfo
from atoll.report.plots import GroupLine, Plot, as_line, line_plot
from atoll.report.privacy import group_claims
from atoll.report.seed_groups import Group

if TYPE_CHECKING:  # matplotlib is slow to import: only what draws does
    from matplotlib.figure import Figure

WORDS: dict[ClaimKind, str] = {
    "client": "epsilon",
    "example": "epsilon of an example",
    "simulates": "simulated epsilon",
}
SNR = MetricInfo("snr", "signal-to-noise ratio", higher_is_better=True)


def spending(groups: Sequence[Group], metric: MetricInfo) -> list[Plot]:
    """Every figure on privacy for which there are numbers."""
    plots = [plot for kind in CLAIM_KINDS for plot in (_against(groups, metric, kind), _by_round(groups, kind))]
    return [plot for plot in (*plots, _snr(groups)) if plot is not None]


def epsilon_by_round(points: Sequence[tuple[int, float]], caption: str) -> Plot:
    """What a plan would spend: rounds and the epsilon after each."""

    def draw() -> Figure:
        figure, axes = theme.canvas(7.0, 3.5)
        axes.plot([r for r, _ in points], [spent for _, spent in points], color=theme.SERIES[0])
        axes.set_xlabel("round")
        axes.set_ylabel("epsilon")
        return figure

    return Plot("epsilon", "Epsilon", caption, caption, draw)


def _against(groups: Sequence[Group], metric: MetricInfo, kind: ClaimKind) -> Plot | None:
    title = f"{metric.title} against {WORDS[kind]}"
    return line_plot(
        [line for group in groups if (line := _metric_line(group, metric, kind))],
        groups,
        metric,
        name=f"{kind}-metric",
        title=title + _labelled(kind),
        caption=f"{metric.title} against the {WORDS[kind]} of the rounds made until then.{_bound(kind)}",
        x=f"epsilon{_labelled(kind)}" if kind != "example" else "epsilon of an example",
    )


def _by_round(groups: Sequence[Group], kind: ClaimKind) -> Plot | None:
    word = WORDS[kind]
    measure = MetricInfo(EPSILON_KEYS[kind], word, higher_is_better=False)
    return line_plot(
        [line for group in groups if (line := _epsilon_line(group, kind))],
        groups,
        measure,
        name=f"{kind}-epsilon",
        title=f"{word} by round{_labelled(kind)}",
        caption=f"{word} of the rounds made until then.{_bound(kind)}",
        x="round",
    )


def _snr(groups: Sequence[Group]) -> Plot | None:
    return line_plot(
        [
            line
            for group in groups
            if (snr := curve(group, "privacy", "snr")).rounds.size
            and (line := as_line(group, snr.rounds.astype(np.float64), snr, SNR))
        ],
        groups,
        SNR,
        name="snr",
        title="Signal-to-noise ratio by round",
        caption="The norm of the aggregated update before noise, over that of the noise that is expected. "
        "Below 1 there is more noise than update. Measured on what the clients sent: epsilon does not cover it.",
        x="round",
    )


def _spent(group: Group, kind: ClaimKind) -> SeedCurve | None:
    """Epsilon so far, of a group whose claim of this kind has one."""
    if not any(claim.kind == kind and claim.epsilon is not None for claim in group_claims(group)):
        return None
    spent = curve(group, "privacy", EPSILON_KEYS[kind])
    return spent if spent.rounds.size and np.isfinite(spent.values).all() else None


def _epsilon_line(group: Group, kind: ClaimKind) -> GroupLine | None:
    spent = _spent(group, kind)
    if spent is None:
        return None
    return GroupLine(group, spent.rounds.astype(np.float64), _largest(spent), None)


def _metric_line(group: Group, metric: MetricInfo, kind: ClaimKind) -> GroupLine | None:
    spent, measured = _spent(group, kind), curve(group, metric.key)
    if spent is None or not np.isin(measured.rounds, spent.rounds).all():
        return None
    return as_line(group, _largest(spent)[np.isin(spent.rounds, measured.rounds)], measured, metric)


def _largest(spent: SeedCurve) -> Floats:
    """Over seeds, rounded up: nowhere does the picture say less than was spent."""
    return np.array([round_up(float(value)) for value in spent.values.max(axis=0)], np.float64)


def _labelled(kind: ClaimKind) -> str:
    return " (simulation only)" if kind == "simulates" else ""


def _bound(kind: ClaimKind) -> str:
    note = " An upper bound, which may be looser than the final one in the table."
    return note + (f" {SIMULATION[0].upper()}{SIMULATION[1:]}." if kind == "simulates" else "")
