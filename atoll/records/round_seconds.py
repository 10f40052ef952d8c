"""How long rounds took in virtual time, beside the baseline's and beside what a paper prints.

>>> plain = Trace(0, "", (1,), (0.9,), (2.0,), (0.0,), times={"federated": 2.0, "train": 1.5})
>>> shared = Trace(0, "", (1,), (0.9,), (4.0,), (0.0,), times={"federated": 3.0, "train": 1.5})
>>> cells = (Cell("all", {"algorithm": "plain"}, (plain,)), Cell("all", {"algorithm": "shared"}, (shared,)))
>>> results = Results("mine", "", "full", "accuracy", True, ("algorithm",), cells, baseline={"algorithm": "plain"})
>>> [(s.cell.method, s.times_as_long, s.overhead) for s in round_seconds(results, "all")]
[('plain', 1.0, 0.25), ('shared', 1.5, 0.5)]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from atoll.records.cells import Cell, Results, Trace
from atoll.records.versus_published import VersusPublished, compare_with_published

OVERHEAD = "framework_overhead_pct"  # what OARF prints


@dataclass(frozen=True)
class RoundSeconds:
    """One cell: virtual seconds of a round, means over seeds."""

    cell: Cell
    parts: Mapping[str, float]  # the fields of clock.RoundParts
    overhead: float  # (federated - train) / federated
    times_as_long: float | None  # as the baseline's round


def round_seconds(results: Results, block: str) -> list[RoundSeconds]:
    """Every cell of a block whose runs had a clock."""
    timed = [cell for cell in results.cells if cell.block == block and _timed(cell)]
    return [_seconds(results, cell) for cell in timed]


def overhead_versus_published(results: Results) -> tuple[VersusPublished, ...]:
    """OARF's framework overhead beside ours, where its table has one."""
    cells = tuple(replace(c, runs=tuple(map(_overheads, c.runs)) if _timed(c) else ()) for c in results.cells)
    measured = replace(results, metric=OVERHEAD, scale=100.0, higher=False, cells=cells)
    return tuple(row for row in compare_with_published(measured) if row.ours_last)


def _seconds(results: Results, cell: Cell) -> RoundSeconds:
    path = {**cell.path, **results.baseline}
    base = next((c for c in results.cells if c.path == path and c.block == cell.block and _timed(c)), None)
    parts = {name: fmean(_part(run, name) for run in cell.runs) for name in cell.runs[0].times}
    whole = fmean(run.times["federated"] for run in base.runs) if base else 0.0
    ratio = parts["federated"] / whole if whole > 0 else None  # a clock without steps and links takes no time
    return RoundSeconds(cell, parts, fmean(_overhead(run) for run in cell.runs), ratio)


def _timed(cell: Cell) -> bool:
    return bool(cell.runs) and all(run.times for run in cell.runs)


def _part(run: Trace, name: str) -> float:
    """NaN for what is not known: an asynchronous server sends all the time."""
    value: float | None = run.times.get(name)
    return math.nan if value is None else value


def _overhead(run: Trace) -> float:
    if "server_send" in run.times and math.isnan(_part(run, "server_send")):
        return math.nan  # a client trains for several steps of the server
    return 1 - run.times["train"] / run.times["federated"] if run.times["federated"] > 0 else 0.0


def _overheads(run: Trace) -> Trace:
    return replace(run, values=(_overhead(run),) * len(run.rounds))
