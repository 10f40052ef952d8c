"""What every cell sent: bytes per round, bytes until it was there, and how many times fewer than the baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from atoll.records import CellTraffic, Results, aim, baseline_of, traffic, traffic_versus_published
from atoll.report import prose
from atoll.report.metrics import suite_metric
from atoll.report.reaching import spent_cell
from atoll.report.suite import beside_published
from atoll.report.suite.scores import of_cell
from atoll.report.text_table import TextCell, TextColumn, TextRow, TextTable, number_columns, row, text_columns
from atoll.stats import t_interval

_MB = 1e-6
_TITLES = {
    "uplink_ratio": "Bytes up per round, ratio",
    "rounds": "Rounds until there",
    "comm_gb": "Gigabytes (2^30 bytes) until there, up and down",
}

_FIRST = (
    " Who is there in its first round was never better later: whether it had learned by then, or never did, says the "
    "value beside it."
)


def sent(results: Results, block: str) -> TextTable | None:
    """A row for each cell of a block; None where the suite names no baseline, or nobody counted."""
    rows = traffic(results, block) if results.baseline else []
    if not rows:
        return None
    metric = suite_metric(results)
    ratio = "how many times fewer bytes than the baseline's"
    heads = (
        *text_columns(*results.axes),
        *number_columns(metric.unit, "MB up a round", "MB down a round"),
        TextColumn("ratio up", "number", f"{ratio}, per round, up"),
        TextColumn("ratio both ways", "number", f"{ratio}, per round, up and down"),
        *number_columns("rounds until there", "MB up until there"),
        *_last_columns(results, ratio),
    )
    return TextTable(heads, tuple(_row(results, one) for one in rows), notes=_notes(results, rows), style="wide")


def published(results: Results) -> list[tuple[str, TextTable]]:
    """The paper's own figures on bytes and rounds beside ours, each with a verdict."""
    if not results.baseline:
        return []
    return [
        (_TITLES[name], table)
        for name, rows in traffic_versus_published(results)
        if (section := beside_published.shown(replace(results, metric=name, scale=1.0), rows))
        and (table := section.rows)
    ]


def _row(results: Results, one: CellTraffic) -> TextRow:
    score = of_cell(one.cell, results, "last")
    entries = (
        prose.MISSING if score is None else TextCell(prose.number(score.mean, 1), _spread(score.std)),
        prose.significant(one.up * _MB),
        prose.significant(one.down * _MB),
        _ratio(one.ratio),
        _ratio(one.both_ways),
        spent_cell(one.rounds, 1.0),
        spent_cell(one.up_spent, _MB),
        *_last_entries(results, one),
    )
    return row(*one.cell.path.values(), *entries, style="quirk" if one.cell.quirk else "", hint=one.cell.quirk or "")


def _last_columns(results: Results, ratio: str) -> tuple[TextColumn, ...]:
    """Bytes to the same value have a ratio; where runs end by their patience, each ends at a value of its own."""
    if results.reach is None:
        return number_columns("MB both ways until there", f"{suite_metric(results).unit} there")
    return (TextColumn("end to end", "number", f"{ratio} until there, up"),)


def _last_entries(results: Results, one: CellTraffic) -> tuple[TextCell | str, ...]:
    if results.reach is None:
        there = t_interval([value * results.scale for value in one.there])
        return spent_cell(one.spent, _MB), TextCell(prose.number(there.mean, 1), _spread(there.std))
    return (TextCell("not reached") if one.up_spent.missed else _ratio(one.end_to_end),)


def _spread(std: float | None) -> str:
    return "" if std is None else prose.number(std, 1)


def _ratio(value: float | None) -> str:
    return prose.MISSING if value is None else prose.significant(value)


def _notes(results: Results, rows: Sequence[CellTraffic]) -> tuple[str, ...]:
    base = prose.listed(f"{axis} {value}" for axis, value in results.baseline.items())
    return (
        "Bytes are the lengths of what was encoded, headers included, of all clients of a round together; means over "
        f"seeds, ± half the width of the 95 % t interval until there. Ratios are to {base}: how many times fewer.",
        _until(results, rows),
        *(["End to end counts the rounds that it takes."] if results.reach else []),
        "Not reached: no seed got there; >: some did not, and count with all that they spent, less than it takes.",
    )


def _best_at_first(rows: Sequence[CellTraffic]) -> bool:
    return any(run.kept == run.rounds[0] for one in rows for run in one.cell.runs)


def _until(results: Results, rows: Sequence[CellTraffic]) -> str:
    if results.reach is None and all(run.kept is None for one in rows for run in one.cell.runs):
        return (
            "There: the round in which its schedule ended a run, as OARF counts convergence. A run that its last round "
            "ended was not there."
        )
    if results.reach is None:
        return (
            "There: the best round by the metric of the [stop] table. A run that its last round ended, and not its "
            f"patience, was not there: its best might have come later.{_FIRST if _best_at_first(rows) else ''}"
        )
    aims = {}
    for one in rows:
        target = aim(results, baseline_of(results, one.cell))
        if target is not None:
            aims[target] = prose.number(target * results.scale, 1)
    listed = prose.listed(dict.fromkeys(aims.values()))
    return (
        f"There: the first evaluated round with {results.reach * 100:g} % of what the baseline has at the end, "
        f"{suite_metric(results).unit} {listed}."
    )
