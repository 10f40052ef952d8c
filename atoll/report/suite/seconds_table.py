"""Virtual seconds of a round, part by part, and what protocols of secure aggregation took: suites with a clock."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from statistics import fmean

from atoll.records import Cell, Results, RoundSeconds, overhead_versus_published, round_seconds
from atoll.report import prose
from atoll.report.suite import beside_published
from atoll.report.text_table import TextColumn, TextRow, TextTable, number_columns, row, text_columns

_CLIENT = ("receive", "train", "compress", "encrypt", "send", "idle")
_TOOK = {"up": 1e-3, "down": 1e-3, "client_seconds": 1e3, "role_seconds": 1e3, "server_seconds": 1e3}  # kB, ms
_KNOWN = {"real": "counted", "cost": "by a cost model"}


def decomposed(results: Results, block: str) -> TextTable | None:
    """OARF's decomposition of a round, a row for each cell; None where no run had a clock."""
    cells = round_seconds(results, block)
    if not cells:
        return None
    heads = (
        *text_columns(*results.axes),
        *number_columns("s a round"),
        TextColumn("times the baseline's", "number", "how many times as long as the baseline's round"),
        TextColumn("overhead %", "number", "the share of a round in which a client does not train"),
        *number_columns(*_CLIENT, group="Client, virtual seconds"),
        *number_columns("send", "idle", group="Server, virtual seconds"),
    )
    notes = (
        "Means over rounds and seeds; of clients, over those whose work counts. A round: from the server's first byte "
        "until it waits no longer. Overhead: OARF's (t_total - t_train) / t_total, without testing. Training takes as "
        "long as the suite's clock says, compressing is not timed. Encrypting: what a protocol takes, with the round "
        "trips that it adds, by a cost model of the machine of the run. What some clients do for all (dealing a key, "
        "decrypting the sum) and what the server computes lie at the end of a round, where clients are idle.",
    )
    return TextTable(heads, tuple(_decomposed(one) for one in cells), notes=notes, style="wide")


def protocols(results: Results, block: str) -> TextTable | None:
    """FedEval's level of every cell, and what its protocol took; None where no cell of the block has one."""
    cells = [c for c in results.cells if c.block == block and c.runs and all(run.security for run in c.runs)]
    if not any("protocol" in run.security for cell in cells for run in cell.runs):
        return None
    heads = (
        *text_columns(*results.axes),
        TextColumn("level", "number", "FedEval's, by what the server learns; of several seeds the lowest"),
        *text_columns("protocol"),
        *number_columns("kB up", "kB down", "ms", group="A client, a round"),
        TextColumn("ms for all", "number", "of whoever deals the key and whoever decrypts, while all others wait"),
        *number_columns("ms", group="The server"),
        *text_columns("how it is known"),
    )
    notes = (
        "Level 1: the server sees every client's update; 2: only the aggregate. Bytes are the protocol's, of one "
        "client on average, without the model that the server sends. Milliseconds are a processor's.",
        *_alarms(cells),
    )
    return TextTable(heads, tuple(_protocol(cell) for cell in cells), notes=notes, style="wide")


def published(results: Results) -> TextTable | None:
    """The paper's framework overhead beside ours."""
    rows = overhead_versus_published(results) if results.reference else ()
    measured = replace(results, metric="framework overhead", scale=100.0)
    section = beside_published.shown(measured, rows) if rows else None
    return section.rows if section else None


def _decomposed(one: RoundSeconds) -> TextRow:
    ratio = prose.MISSING if one.times_as_long is None else prose.significant(one.times_as_long)
    names = (*_CLIENT, "server_send", "server_idle")
    overhead = prose.number(one.overhead * 100, 1) if isfinite(one.overhead) else prose.MISSING
    parts = (_short(one.parts[name]) for name in names)
    return row(*one.cell.path.values(), _short(one.parts["federated"]), ratio, overhead, *parts)


def _protocol(cell: Cell) -> TextRow:
    level = min(int(run.security["level"]) for run in cell.runs)
    first = cell.runs[0].security
    if "protocol" not in first:
        return row(*cell.path.values(), level, *[prose.MISSING] * 7)
    took = [_took(cell, name, by) for name, by in _TOOK.items()]
    return row(*cell.path.values(), level, first["protocol"], *took, _KNOWN.get(first["mode"], first["mode"]))


def _took(cell: Cell, name: str, by: float) -> str:
    """Nothing where no client has a role, or an earlier version wrote none."""
    if not all(name in run.security for run in cell.runs):
        return prose.MISSING
    return _short(fmean(run.security[name] for run in cell.runs) * by)


def _alarms(cells: list[Cell]) -> list[str]:
    named = [cell.name for cell in cells if any(run.security.get("insecure_seed") for run in cell.runs)]
    if not named:
        return []
    return [f"INSECURE: {prose.listed(named)} drew keys and masks from the run's seed. For tests only."]


def _short(x: float) -> str:
    return prose.significant(x) if isfinite(x) else prose.MISSING
