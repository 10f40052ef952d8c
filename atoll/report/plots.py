"""The figures: curves by round and by bytes, the spread over clients, time by phase."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.records import Floats
from atoll.report import hover, theme
from atoll.report.estimates import PHASES, SeedCurve, curve, phases, seconds
from atoll.report.metrics import LOSS, TRAIN_LOSS, MetricInfo
from atoll.report.prose import significant
from atoll.report.seed_groups import Group
from atoll.stats import half_width

if TYPE_CHECKING:  # matplotlib is slow to import: only what draws does
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, HEIGHT, LEGEND_LINE = 4.8, 2.8, 0.2  # inches
LABEL, TICK_LABEL = 52, 20  # characters before a name is folded
SHARES = np.linspace(0.0, 1.0, 101)
BAND = "Shaded: 95 % t interval over seeds."


@dataclass(frozen=True)
class GroupLine:
    """What one group contributes to a figure: x, mean and half width (None for a single seed)."""

    group: Group
    x: Floats
    mean: Floats
    half: Floats | None


@dataclass(frozen=True)
class Plot:
    """A figure that can be drawn: its file name, its heading, what it shows, and its numbers in words."""

    name: str
    title: str
    caption: str
    alt: str
    draw: Callable[[], Figure]

    def svg(self) -> str:
        import matplotlib as mpl

        with mpl.rc_context(theme.RC):
            figure = self.draw()
            return hover.titled(theme.svg(figure, self.name, self.alt), figure, self.name)

    def picture(self, kind: Literal["png", "pdf"]) -> bytes:
        import matplotlib as mpl

        with mpl.rc_context(theme.RC):
            return theme.picture(self.draw(), kind)


def plots(groups: Sequence[Group], metric: MetricInfo) -> list[Plot]:
    """Every figure for which there are numbers."""
    loss = LOSS if any(_by_round(group, LOSS) for group in groups) else TRAIN_LOSS
    measures = [metric] if metric.key == loss.key else [metric, loss]
    candidates = [
        *(_round_plot(groups, measure) for measure in measures),
        _bytes_plot(groups, metric),
        _clients_plot(groups, metric, "before"),
        _clients_plot(groups, metric, "after"),
        _time_plot(groups),
    ]
    return [plot for plot in candidates if plot is not None]


def _round_plot(groups: Sequence[Group], metric: MetricInfo) -> Plot | None:
    lines = [line for group in groups if (line := _by_round(group, metric))]
    where = "over the clients of a round" if metric is TRAIN_LOSS else "on the central test set"
    return line_plot(
        lines,
        groups,
        metric,
        name=metric.key.replace("_", "-"),
        title=f"{metric.title} by round",
        caption=f"{metric.title} {where}, {metric.better}.",
        x="round",
    )


def _bytes_plot(groups: Sequence[Group], metric: MetricInfo) -> Plot | None:
    lines = [line for group in groups if (line := _by_bytes(group, metric))]
    ways = "" if all(group.without_server for group in groups) else ", up and down"
    return line_plot(
        lines,
        groups,
        metric,
        name="bytes",
        title=f"{metric.title} by bytes",
        caption=f"{metric.title} on the central test set against all megabytes (1e6 bytes) sent so far{ways}.",
        x=f"MB sent{ways}",
    )


def _clients_plot(groups: Sequence[Group], metric: MetricInfo, when: str) -> Plot | None:
    lines = [line for group in groups if (line := _over_clients(group, metric, when))]
    tuned = " after local training" if when == "after" else ""
    on = dict.fromkeys(r.clients.on for line in lines for r in line.group.records if r.clients)
    return line_plot(
        lines,
        groups,
        metric,
        name="clients" if when == "before" else "clients-after",
        title=f"{metric.title} over clients{tuned}",
        caption=f"Clients from the worst off to the best off, each on its own {' or '.join(on)}. A flat line is fair.",
        x="clients, worst off first (%)",
        markers=False,
    )


def _time_plot(groups: Sequence[Group]) -> Plot | None:
    timed = [group for group in groups if phases(group)]
    if not timed:
        return None
    totals = "; ".join(f"{group.name} {_seconds(group):.3g} s" for group in timed)
    return Plot(
        "time",
        "Time by phase",
        "Seconds per round, mean over all rounds and seeds, the first round included.",
        f"Seconds per round: {totals}.",
        lambda: _draw_time(timed),
    )


def _by_round(group: Group, metric: MetricInfo) -> GroupLine | None:
    recorded = curve(group, metric.key)
    return as_line(group, recorded.rounds.astype(np.float64), recorded, metric)


def _by_bytes(group: Group, metric: MetricInfo) -> GroupLine | None:
    recorded, up = curve(group, metric.key), curve(group, "bytes", "up")
    if not up.rounds.size or not np.isin(recorded.rounds, up.rounds).all():
        return None
    twice = 0.0 if group.without_server else curve(group, "bytes", "down").values
    sent = np.cumsum((up.values + twice).mean(axis=0)) / 1e6
    return as_line(group, sent[np.isin(up.rounds, recorded.rounds)], recorded, metric)


def as_line(group: Group, x: Floats, recorded: SeedCurve, metric: MetricInfo) -> GroupLine | None:
    """A recorded curve at these x; None where nothing was recorded."""
    if not recorded.rounds.size:
        return None
    half = recorded.half
    return GroupLine(group, x, recorded.mean * metric.scale, None if half is None else half * metric.scale)


def _over_clients(group: Group, metric: MetricInfo, when: str) -> GroupLine | None:
    """The mean over seeds of the sorted values, at 101 shares of the clients."""
    values = [list(r.clients.measured(metric.key, when).values()) if r.clients else [] for r in group.records]
    if not all(values):
        return None
    towards = SHARES if metric.higher_is_better else 1.0 - SHARES
    sorted_values = np.array([np.quantile(v, towards) for v in values]) * metric.scale
    return GroupLine(group, SHARES * 100, sorted_values.mean(axis=0), half_width(sorted_values))


def line_plot(
    lines: Sequence[GroupLine],
    groups: Sequence[Group],
    metric: MetricInfo,
    *,
    name: str,
    title: str,
    caption: str,
    x: str,
    markers: bool = True,
) -> Plot | None:
    """A plot of these lines; a group keeps its style in every figure, so the styles count over all groups."""
    if not lines:
        return None
    styles = [theme.line_style(groups.index(line.group)) for line in lines]
    styles = styles if markers else [{**style, "marker": ""} for style in styles]
    band = f" {BAND}" if any(line.half is not None for line in lines) else ""
    ends = "; ".join(f"{line.group.name} from {line.mean[0]:.4g} to {line.mean[-1]:.4g}" for line in lines)
    return Plot(
        name,
        title[0].upper() + title[1:],
        caption[0].upper() + caption[1:] + band,
        f"{metric.unit} against {x}: {ends}.",
        lambda: _draw_lines(lines, styles, x, metric),
    )


def _draw_lines(lines: Sequence[GroupLine], styles: Sequence[dict[str, Any]], x: str, metric: MetricInfo) -> Figure:
    from matplotlib.ticker import MaxNLocator

    labels = [textwrap.fill(f"{line.group.name} ({line.group.said_seeds})", LABEL) for line in lines]
    lines_below = sum(label.count("\n") + 1 for label in labels)
    figure, axes = theme.canvas(WIDTH, HEIGHT + LEGEND_LINE * lines_below)
    handles = []
    for line, style in zip(lines, styles, strict=True):
        every = max(1, len(line.x) // 8)
        handles += axes.plot(line.x, line.mean, markevery=every, **style)
        if line.half is not None:
            low, high = line.mean - line.half, line.mean + line.half
            if metric.share:  # no interval reaches beyond what a share can be
                low, high = np.maximum(low, 0.0), np.minimum(high, metric.scale)
            axes.fill_between(line.x, low, high, color=style["color"], alpha=0.16, linewidth=0)
    axes.set_xlabel(x)
    axes.set_ylabel(metric.unit)
    _limit(axes, lines, metric)
    if x == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    ends = [line.x[-1] for line in lines if line.x[-1] > 0]
    if x.startswith(("MB", "epsilon")) and len(ends) > 1 and max(ends) > 10 * min(ends):
        theme.logarithmic(axes, "x")
    places = hover.spread(np.concatenate([line.x for line in lines]))
    hover.add(axes, places, [_title(lines, x, float(place)) for place in places])
    _legend(figure, handles, labels)
    return figure


def _title(lines: Sequence[GroupLine], x: str, place: float) -> str:
    """What every group that has a point there reached, with its interval."""
    said = [f"{x}: {place:.4g}"]
    for line in lines:
        for i in np.flatnonzero(line.x == place):
            half = "" if line.half is None else f" ± {line.half[i]:.2g}"
            said.append(f"{line.group.name}: {line.mean[i]:.4g}{half}")
    return "\n".join(said)


def _limit(axes: Axes, lines: Sequence[GroupLine], metric: MetricInfo) -> None:
    """Room for the means first: an interval of two seeds may be wide and must not flatten every curve."""
    means = np.concatenate([line.mean[np.isfinite(line.mean)] for line in lines])
    if not means.size:
        return
    if means.min() > 0 and means.max() > 100 * means.min():
        theme.logarithmic(axes, "y")
        return
    room = 0.5 * (means.max() - means.min()) or 0.05 * abs(means.max()) or 1.0
    bands = [line.mean + sign * line.half for line in lines if line.half is not None for sign in (-1, 1)]
    reach = np.concatenate([means, *(band[np.isfinite(band)] for band in bands)])
    low, high = max(reach.min(), means.min() - room), min(reach.max(), means.max() + room)
    if metric.share:
        low, high = max(low, 0.0), min(high, metric.scale)
    pad = 0.04 * (high - low) or room
    axes.set_ylim(low - pad, high + pad)


def _draw_time(groups: Sequence[Group]) -> Figure:
    """One bar per group; the phases follow each other in the order in which they run."""
    names = sorted({phase for group in groups for phase in phases(group)}, key=_turn)
    lines_below = 1 + (len(names) - 1) // 5
    figure, axes = theme.canvas(WIDTH, 0.8 + 0.34 * len(groups) + LEGEND_LINE * lines_below)
    rows = np.arange(len(groups))
    start = np.zeros(len(groups))
    handles = []
    for number, phase in enumerate(names):
        width = np.array([_seconds(group, phase) if phase in phases(group) else 0.0 for group in groups])
        color = theme.PHASES[number % len(theme.PHASES)]
        bars = axes.barh(rows, width, left=start, height=0.62, color=color, edgecolor=theme.PAPER, linewidth=0.8)
        handles.append(bars)
        start += width
    for row, total in zip(rows, start, strict=True):
        axes.annotate(f"{significant(total)} s", (total, row), (4, 0), textcoords="offset points", va="center", size=9)
    axes.set_yticks(rows, [textwrap.fill(group.name, TICK_LABEL) for group in groups])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()
    axes.set_xlim(0, float(start.max()) * 1.15 or 1.0)
    axes.set_xlabel("seconds per round")
    _legend(figure, handles, names, columns=5, length=1.2)
    return figure


def _turn(phase: str) -> tuple[int, str]:
    return (PHASES.index(phase) if phase in PHASES else len(PHASES), phase)


def _seconds(group: Group, *only: str) -> float:
    estimate = seconds(group, *only)
    return estimate.mean if estimate else 0.0


def _legend(
    figure: Figure, handles: Sequence[Any], labels: Sequence[str], columns: int = 1, length: float = 3.2
) -> None:
    """Below the axes. The text is set afterwards: matplotlib before 3.10 drops a label that begins with _."""
    if not handles:
        return
    legend = figure.legend(
        handles,
        ["."] * len(handles),
        loc="outside lower left",
        ncols=columns,
        handlelength=length,
        columnspacing=1.2,
        labelspacing=0.3,
    )
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(label)
