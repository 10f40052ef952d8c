"""The final table: what each group reached, how it is spread over clients, and what it cost."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atoll.report import prose
from atoll.report.estimates import best, curve, interval, per_round, seconds
from atoll.report.gains import gain
from atoll.report.metrics import MetricInfo
from atoll.report.seed_groups import Group
from atoll.report.text_table import TextCell, TextColumn, TextRow, TextTable, number_columns, row, text_columns
from atoll.stats import Estimate

_TERMINAL = 80  # characters that any terminal has, and a pipe is given
PERSONAL = {"mean": "own mean", "last": "test", "worst": "worst 10%", "gain": "gain", "seconds": "s/round"}
BRIEF = {
    "last": "test",
    "worst": "worst 10%",
    "gain": "gain",
    "up": "MB up",
    "sent": "MB sent",
    "federated": "virtual s",
    "seconds": "s/round",
}  # in a terminal


@dataclass(frozen=True)
class Column:
    """One column: its heading, what it means in plain words, and how its estimates are shown."""

    key: str
    span: str
    title: str
    meaning: str
    scale: float = 1.0
    digits: int | None = None
    signed: bool = False
    interval: bool = True

    def cell(self, estimate: Estimate | None, digits: int | None = None) -> TextCell:
        """The mean, and half the width of its interval where it has one."""
        if estimate is None:
            return TextCell(prose.MISSING)
        if estimate.diverged:
            return TextCell("diverged")
        text = self._number(estimate.mean, "+" if self.signed else "", digits)
        half = estimate.half if self.interval else None
        if half is None or not math.isfinite(half):
            return TextCell(text)
        if estimate.all_equal:
            return TextCell(text, remarks=(prose.ALL_EQUAL,) if digits is None else ())
        return TextCell(text, self._number(half, "", digits))

    def _number(self, value: float, sign: str, digits: int | None) -> str:
        places = self.digits if digits is None or self.digits is None else digits
        shown = value * self.scale
        text = f"{shown:{sign}.{places}f}" if places is not None else prose.significant(shown, sign)
        return text.replace("-", "−")  # as wide as a plus


@dataclass(frozen=True)
class FinalRow:
    """One line: a group as it stands, or (`when` is "after") what its clients reach after local training."""

    group: Group
    when: str
    cells: Mapping[str, Estimate | None]


@dataclass(frozen=True)
class Final:
    """What was reached, without the columns that nobody filled."""

    metric: MetricInfo
    columns: tuple[Column, ...]
    rows: tuple[FinalRow, ...]
    personal: bool = False  # has a method whose clients predict with models of their own: those come first

    @property
    def has_gain(self) -> bool:
        """Whether a gain over training alone could be worked out."""
        return any(column.key == "gain" for column in self.columns)


def page_table(final: Final) -> TextTable:
    """Every column, for a page."""
    seeds = TextColumn("seeds", "number", "number of runs that differ only in their seed")
    heads = (TextColumn(one.title, "number", one.meaning, one.span) for one in final.columns)
    spread = "± is half the width of the 95 % t interval over seeds; a single seed has none, nor have equal ones."
    notes = (f"{prose.first_up(final.metric.heading())}.", spread)
    rows = tuple(_row(one, final.columns, "after local training") for one in final.rows)
    return TextTable((TextColumn("run"), seeds, *heads), rows, notes=notes, style="wide")


def brief_table(final: Final) -> TextTable:
    """The columns that matter, within 80 characters: those that can be spared go where numbers are long."""
    table = _brief_table(final)
    for spared in ("up", "sent", "worst", "seconds", "federated"):
        if table.width > _TERMINAL:
            final = replace(final, columns=tuple(one for one in final.columns if one.key != spared))
            table = _brief_table(final)
    return table


def _brief_table(final: Final) -> TextTable:
    titles = PERSONAL if final.personal else BRIEF
    columns = [one for one in final.columns if one.key in titles]
    heads = (*text_columns("run"), *number_columns("seeds", *(titles[one.key] for one in columns)))
    rows = tuple(_row(one, columns, "  then tuned", digits=1) for one in final.rows)
    notes = {
        "own mean: what clients predict with, each on its own data, mean over clients.": final.personal,
        "test: central test set, last round; ± half a 95 % t interval, if seeds differ.": True,
        "Without a server, test is of the mean of all nodes' models.": any(
            one.group.without_server for one in final.rows
        ),
        "worst 10%: mean of the worst-off tenth of the clients.": any(one.key == "worst" for one in columns),
        "gain: over training alone, mean over clients.": final.has_gain,
        "then tuned: the same clients after local training.": any(one.when == "after" for one in final.rows),
    }
    return TextTable(heads, rows, final.metric.heading(), tuple(note for note, holds in notes.items() if holds))


def _row(one: FinalRow, columns: Sequence[Column], after: str, digits: int | None = None) -> TextRow:
    name = (one.group.name, len(one.group.records)) if one.when == "before" else (after, "")
    cells = (c.cell(one.cells[c.key], digits) if c.key in one.cells else "" for c in columns)
    return row(*name, *cells, style="after" if one.when == "after" else "")


def final(groups: Sequence[Group], metric: MetricInfo) -> Final:
    """One row per group, and a second one where clients were measured again after local training."""
    rows = [FinalRow(group, "before", _cells(group, groups, metric)) for group in groups]
    rows += [
        FinalRow(group, "after", cells)
        for group in groups
        if any((cells := _client_cells(group, groups, metric, "after")).values())
    ]
    rows.sort(key=lambda row: groups.index(row.group))  # stable: "after" follows its group
    filled = {key for row in rows for key, cell in row.cells.items() if cell is not None}
    columns = [column for column in _columns(metric) if column.key in filled]
    personal = "mean" in filled and any(group.personal for group in groups)
    if personal:
        columns.sort(key=lambda column: column.key != "mean")
    return Final(metric, tuple(columns), tuple(rows), personal)


def _cells(group: Group, groups: Sequence[Group], metric: MetricInfo) -> dict[str, Estimate | None]:
    return {
        "last": curve(group, metric.key).last,
        "best": best(group, metric),
        **_client_cells(group, groups, metric, "before"),
        **_traffic(group),
        "federated": _federated(group),
        "seconds": seconds(group),
    }


def _traffic(group: Group) -> dict[str, Estimate | None]:
    if group.without_server:  # what one node sends, another receives: once
        return {"sent": per_round(group, "bytes", "up")}
    return {"up": per_round(group, "bytes", "up"), "down": per_round(group, "bytes", "down")}


def _federated(group: Group) -> Estimate | None:
    """Virtual seconds of a round, where there was a clock."""
    ends = [record.series("clock.end") for record in group.records]
    return interval([float(s.values[-1] / s.rounds[-1]) for s in ends]) if all(s.rounds.size for s in ends) else None


def _client_cells(group: Group, groups: Sequence[Group], metric: MetricInfo, when: str) -> dict[str, Estimate | None]:
    part = "after" if when == "after" else "clients"
    gained = gain(group, groups, metric, when)
    return {
        "mean": curve(group, part, metric.key, "mean").last,
        "worst": curve(group, part, metric.key, "worst_decile").last,
        "std": curve(group, part, metric.key, "std").last,
        "gini": curve(group, part, metric.key, "gini").last,
        "gain": gained.mean if gained else None,
        "gaining": gained.share if gained else None,
    }


def _columns(metric: MetricInfo) -> list[Column]:
    central, clients, cost = (
        f"Test {metric.title}",
        f"{metric.title[:1].upper()}{metric.title[1:]} over clients",
        "Cost of a round",
    )
    shown, digits = metric.scale, 2 if metric.percent else None
    points = " in percentage points" if metric.percent else ""
    return [
        Column("last", central, "last round", "on the central test set, at the last evaluated round", shown, digits),
        Column("best", central, "best round", "the best round, chosen on the test set itself: flatters", shown, digits),
        Column("mean", clients, "mean", "mean over clients, each on its own data, all counting alike", shown, digits),
        Column("worst", clients, "worst 10%", "the mean of the worst-off tenth of the clients", shown, digits),
        Column("std", clients, "std", f"standard deviation over clients{points}", shown, digits, interval=False),
        Column("gini", clients, "Gini", "inequality over clients: 0 when all have the same", digits=3, interval=False),
        Column(
            "gain", clients, "gain",
            f"a client's gain over training alone, mean over clients{points}; above 0 the federation helps",
            shown, digits, signed=True,
        ),
        Column("gaining", clients, "gaining", "percent of clients better off than alone", 100, 0, interval=False),
        Column("up", cost, "MB up", "megabytes (1e6 bytes) from the cohort to the server", 1e-6, interval=False),
        Column("down", cost, "MB down", "megabytes (1e6 bytes) from the server to the cohort", 1e-6, interval=False),
        Column("sent", cost, "MB sent", "megabytes (1e6 bytes) from node to node", 1e-6, interval=False),
        Column("federated", cost, "virtual s", "virtual seconds, mean over all rounds: [clock]", interval=False),
        Column("seconds", cost, "seconds", "all phases, mean over all rounds, evaluation included", interval=False),
    ]  # fmt: skip
