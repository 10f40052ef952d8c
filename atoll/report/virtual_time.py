"""Virtual time on a page: where it goes, who holds the others up, and one round as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from atoll.clock import ABSENT, COUNTED, DROPPED, LATE, STATUS, RoundParts, Timeline
from atoll.records import Record
from atoll.report import prose, theme
from atoll.report.estimates import curve, seconds
from atoll.report.metrics import MetricInfo
from atoll.report.plots import WIDTH, GroupLine, Plot, as_line, line_plot
from atoll.report.seed_groups import Group
from atoll.report.text_table import TextTable, number_columns, row, text_columns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST = 40  # clients in the picture of a round
_STRAGGLERS = 10
_PARTS = ("download", "train", "upload", "idle")


class VirtualTime(NamedTuple):
    """The section of a page."""

    parts: TextTable
    stragglers: TextTable


def timelines(record: Record) -> list[Timeline]:
    """The rounds of a run in virtual time; none without a clock."""
    return [Timeline.from_line(line) for line in record.times]


def section(groups: Sequence[Group]) -> VirtualTime | None:
    """None where no run had a clock."""
    timed = [one for one in groups if one.records[0].times]
    return VirtualTime(parts_table(timed), straggler_table(timed)) if timed else None


def parts_table(groups: Sequence[Group]) -> TextTable:
    """OARF's decomposition: of those that count and of the server, per round, and what the simulation itself took."""
    clients = ("receive", "train", "compress", "encrypt", "send", "idle")
    server = () if all(one.without_server for one in groups) else ("send", "idle")
    heads = (
        *text_columns("run"),
        *number_columns("federated s"),
        *number_columns(*clients, group="Client, virtual seconds"),
        *number_columns(*server, group="Server, virtual seconds"),
        *number_columns("train", "aggregate", "overhead", group="Simulation, real seconds"),
    )
    rows = tuple(row(one.name, *map(_short, [*_virtual(one, bool(server)), *_real(one)])) for one in groups)
    began = (
        "from the server's first byte until it waits no longer" if server else "from the first step to the last byte"
    )
    of_server = " A server sends until its last client has received, and is idle until it waits no longer."
    notes = (
        f"Means over rounds and seeds; of clients, over those whose work counts. Federated: {began}. Compressing: "
        "clock.seconds_to_compress. Encrypting: what a protocol of [secure] takes, by its cost model."
        f"{of_server if server else ''}",
    )
    return TextTable(heads, rows, notes=notes, style="wide")


def _virtual(group: Group, server: bool) -> list[float]:
    """Of a round, of its clients and, where the table has columns for one, of its server."""
    parts = RoundParts.mean([t for record in group.records for t in timelines(record)])
    none = [np.nan, np.nan] if server else []
    return [*parts[:-2], *none] if group.without_server else [*parts]


def _real(group: Group) -> list[float]:
    parts = [seconds(group, *phases) for phases in (("train",), ("server",), ("sample", "record"))]
    return [np.nan if x is None else x.mean for x in parts]


def _short(x: float) -> str:
    return prose.significant(x) if np.isfinite(x) else prose.MISSING


def straggler_table(groups: Sequence[Group]) -> TextTable:
    """Who was last most often, of the first run."""
    record = groups[0].records[0]
    rounds, names = timelines(record), record.client_names
    asked, last, late, lost = (_counts(rounds, kind) for kind in ("asked", "last", "late", "lost"))
    order = sorted(asked, key=lambda c: (-(last.get(c, 0) + late.get(c, 0)), -asked[c], c))[:_STRAGGLERS]
    rows = [
        row(names.get(c, f"client {c}"), asked[c], last.get(c, 0), late.get(c, 0), lost.get(c, 0), _slow(rounds, c))
        for c in order
    ]
    heads = (*text_columns("client"), *number_columns("asked", "last", "late", "lost", "seconds"))
    notes = (
        f"{groups[0].name}, seed {record.seed}: how often a client was asked, was the last whose work counts, was "
        "late, or was lost (dropped out, or out of reach); seconds: from the round's begin to the client's last byte.",
    )
    return TextTable(heads, tuple(rows), notes=notes)


def _counts(rounds: Sequence[Timeline], kind: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for t in rounds:
        for client in _those(t, kind):
            found[client] = found.get(client, 0) + 1
    return found


def _those(t: Timeline, kind: str) -> list[int]:
    if kind == "last":
        return [int(t.ids[t.counted][np.argmax(t.arrived[t.counted])])] if t.counted.any() else []
    wanted = {"asked": range(len(STATUS)), "late": [LATE], "lost": [DROPPED, ABSENT]}[kind]
    ids: list[int] = t.ids[np.isin(t.status, list(wanted))].tolist()
    return ids


def _slow(rounds: Sequence[Timeline], client: int) -> str:
    taken = np.concatenate([(t.arrived - t.begins)[t.ids == client] for t in rounds])
    taken = taken[np.isfinite(taken)]
    return _short(float(taken.mean()) if taken.size else np.nan)


def virtual_plots(groups: Sequence[Group], metric: MetricInfo) -> list[Plot]:
    """The metric against virtual seconds, and the slowest round of the first run."""
    timed = [one for one in groups if one.records[0].times]
    if not timed:
        return []
    lines = [line for one in timed if (line := _by_seconds(one, metric))]
    against = line_plot(
        lines,
        groups,
        metric,
        name="virtual-seconds",
        title=f"{metric.title} by virtual seconds",
        caption=f"{metric.title} on the central test set against the virtual time of the rounds so far.",
        x="virtual seconds",
    )
    return [plot for plot in (against, gantt(timed[0].records[0])) if plot is not None]


def _by_seconds(group: Group, metric: MetricInfo) -> GroupLine | None:
    recorded, ends = curve(group, metric.key), curve(group, "clock", "end")
    if not np.isin(recorded.rounds, ends.rounds).all():
        return None
    return as_line(group, ends.mean[np.isin(ends.rounds, recorded.rounds)], recorded, metric)


def gantt(record: Record) -> Plot:
    """The slowest round: what each client did when."""
    rounds = timelines(record)
    number = int(np.argmax([t.seconds for t in rounds]))
    shown = min(_MOST, len(rounds[number].ids))
    t = rounds[number]
    counts = ", ".join(f"{int((t.status == i).sum())} {name}" for i, name in enumerate(STATUS) if (t.status == i).any())
    of_all = "" if shown == len(t.ids) else f" The {shown} that took longest."
    line = "the last message has arrived" if record.without_server else "the server went on"
    return Plot(
        "gantt",
        f"Round {number + 1}, client by client",
        f"The slowest round of {record.label}, seed {record.seed}: {counts}.{of_all} The line is where {line}; "
        "a cross follows what a lost client did last; pale bars do not count.",
        f"Round {number + 1} took {t.seconds:.4g} virtual seconds: {counts}.",
        lambda: _draw_gantt(t, record.client_names, shown),
    )


def _draw_gantt(t: Timeline, names: dict[int | str, str], shown: int) -> Figure:
    longest = np.argsort(np.where(np.isfinite(t.arrived), t.arrived, t.end), kind="stable")[::-1][:shown]
    figure, axes = theme.canvas(WIDTH, 0.9 + 0.2 * max(3, shown))
    for place, i in enumerate(longest):
        at = t.begins[i]
        for part, until in zip(range(3), (t.received[i], t.sent[i], t.arrived[i]), strict=True):
            if not np.isfinite(until):
                axes.plot([at - t.start], [place], marker="x", color=theme.INK, linestyle="")
                break
            pale = 1.0 if t.status[i] == COUNTED else 0.35
            axes.barh(place, until - at, left=at - t.start, height=0.7, color=theme.PHASES[part], alpha=pale)
            at = until
        else:
            axes.barh(place, max(0.0, t.end - at), left=at - t.start, height=0.12, color=theme.PHASES[6])
    axes.axvline(t.seconds, color=theme.INK, linewidth=0.9)
    axes.set_yticks(range(shown), [textwrap.shorten(names.get(int(t.ids[i]), str(t.ids[i])), 18) for i in longest])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()
    axes.set_xlabel("virtual seconds since the round began")
    _legend(figure)
    return figure


def _legend(figure: Figure) -> None:
    from matplotlib.patches import Patch

    colors = (*theme.PHASES[:3], theme.PHASES[6])
    handles = [Patch(color=color, label=part) for color, part in zip(colors, _PARTS, strict=True)]
    figure.legend(handles=handles, loc="outside lower left", ncols=4, handlelength=1.2, columnspacing=1.2)
