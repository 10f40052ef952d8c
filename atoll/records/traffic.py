"""What crossed the wire until a run was there: bytes per round, bytes until the aim, and both as ratios.

Ratios are to the cell of the same row that `Results.baseline` names. The aim is a share of what the baseline has at the
end (`Results.reach`), or each run's best round by the metric of its [stop] table (`Trace.kept`), or the round in which
a schedule ended it. A run that its last round ended was not there: its best might have come later.

>>> plain = Trace(0, "", (1, 2, 3), (0.5, 0.8, 0.8), (200, 400, 600), (0.0,) * 3, up=(100, 200, 300))
>>> sparse = Trace(0, "", (1, 2, 3), (0.3, 0.6, 0.78), (110, 220, 330), (0.0,) * 3, up=(10, 20, 30))
>>> cells = (Cell("all", {"algorithm": "plain"}, (plain,)), Cell("all", {"algorithm": "topk"}, (sparse,)))
>>> results = Results("mine", "", "full", "accuracy", True, ("algorithm",), cells,
...                   baseline={"algorithm": "plain"}, reach=0.95)
>>> [(t.cell.method, t.ratio, t.end_to_end, t.rounds.amounts) for t in traffic(results, "all")]
[('plain', 1.0, 1.0, (2.0,)), ('topk', 10.0, 6.666666666666667, (3.0,))]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from atoll.records.cells import Cell, Results, Trace
from atoll.records.status import ended_by_rule
from atoll.records.versus_published import VersusPublished, compare_with_published

GIBIBYTE = 2.0**30  # what FedEval's gigabytes are: it prints 1,802 of them as 1.76 TB
MEASURED = ("uplink_ratio", "rounds", "comm_gb")  # what papers print of it


@dataclass(frozen=True)
class Spent:
    """What each seed had spent when it was there, or in all if it never was."""

    amounts: tuple[float, ...]
    reached: tuple[bool, ...]

    @property
    def mean(self) -> float:
        """Over all seeds: where some were never there, less than it takes."""
        return fmean(self.amounts) if self.amounts else math.nan

    @property
    def missed(self) -> int:
        """Seeds that were never there."""
        return self.reached.count(False)


@dataclass(frozen=True)
class CellTraffic:
    """One cell: bytes are of all clients together."""

    cell: Cell
    up: float  # bytes of a round, mean over rounds and seeds
    down: float
    ratio: float | None  # of the baseline's bytes up, per round
    both_ways: float | None  # the same of up and down together
    rounds: Spent  # until the aim
    up_spent: Spent
    spent: Spent  # up and down
    there: tuple[float, ...]  # the metric of every seed in that round, or in its last
    end_to_end: (
        float | None
    )  # of the baseline's bytes up until a value of the metric; None where a seed was never there


def traffic(results: Results, block: str) -> list[CellTraffic]:
    """Every cell of a block that has runs which counted their bytes."""
    cells = [cell for cell in results.cells if cell.block == block and cell.runs and all(run.up for run in cell.runs)]
    return [_traffic(results, cell, baseline_of(results, cell)) for cell in cells]


def baseline_of(results: Results, cell: Cell) -> Cell | None:
    """What a cell is compared with: its own block's first."""
    path = {**cell.path, **results.baseline}
    named = [c for c in results.cells if c.path == path and c.runs and all(run.up for run in c.runs)]
    return next((c for c in named if c.block == cell.block), named[0] if named else None)


def aim(results: Results, baseline: Cell | None) -> float | None:
    """The value of the metric that is to be reached; None where it is each run's best round."""
    if results.reach is None or baseline is None:
        return None
    last = fmean(run.last for run in baseline.runs)
    return last * results.reach if results.higher else last / results.reach


def traffic_versus_published(results: Results) -> list[tuple[str, tuple[VersusPublished, ...]]]:
    """The figures on bytes and rounds that the suite's table has for its cells, each beside ours with a verdict.

    Papers count rounds until training has converged: only runs that end so are compared in that.
    """
    names = MEASURED if results.reach is None else MEASURED[:1]
    compared = [(name, compare_with_published(_measured(results, name))) for name in names]
    return [(name, found) for name, rows in compared if (found := tuple(row for row in rows if row.ours_last))]


def _traffic(results: Results, cell: Cell, baseline: Cell | None) -> CellTraffic:
    target = aim(results, baseline)
    up, both = _per_round(cell)
    rounds, sent, both_spent = (_until(results, cell, target, cost) for cost in ("rounds", "up", "bytes"))
    theirs = _until(results, baseline, target, "up") if baseline else None
    same = target is not None and theirs is not None and not theirs.missed and not sent.missed
    base = _per_round(baseline) if baseline else None
    return CellTraffic(
        cell,
        up,
        both - up,
        base[0] / up if base else None,
        base[1] / both if base else None,
        rounds,
        sent,
        both_spent,
        tuple(run.values[-1 if place is None else place] for run, place in _places(results, cell, target)),
        theirs.mean / sent.mean if theirs and same else None,
    )


def _per_round(cell: Cell) -> tuple[float, float]:
    """Bytes of a round, up and in all."""
    up = fmean(run.up[-1] / run.rounds[-1] for run in cell.runs)
    return up, fmean(run.bytes[-1] / run.rounds[-1] for run in cell.runs)


def _until(results: Results, cell: Cell, target: float | None, cost: str) -> Spent:
    places = _places(results, cell, target)
    amounts = (
        float({"rounds": run.rounds, "up": run.up, "bytes": run.bytes}[cost][-1 if place is None else place])
        for run, place in places
    )
    return Spent(tuple(amounts), tuple(place is not None for _, place in places))


def _places(results: Results, cell: Cell, target: float | None) -> list[tuple[Trace, int | None]]:
    return [(run, _place(results, run, target)) for run in cell.runs]


def _place(results: Results, run: Trace, target: float | None) -> int | None:
    """The first evaluated round that reaches the target, or the one that [stop] keeps, if patience ended the run.

    A run without [stop] that ended by its own rule, as a schedule of the rate may end it, was there in its last round.
    """
    if target is None and run.kept is None and ended_by_rule(run.status) and not run.privacy:  # nor by its budget
        return len(run.rounds) - 1
    if target is None:
        return run.rounds.index(run.kept) if run.kept in run.rounds and ended_by_rule(run.status) else None
    better = [v >= target if results.higher else v <= target for v in run.values]
    return better.index(True) if any(better) else None


def _measured(results: Results, name: str) -> Results:
    """The same results with one of these figures in place of the metric, for runs that were there."""
    rows = {(block, row.cell.name): row for block in results.blocks() for row in traffic(results, block)}
    cells = tuple(replace(c, runs=_runs(c, rows.get((c.block, c.name)), name)) for c in results.cells)
    return replace(results, metric=name, scale=1.0, higher=name == "uplink_ratio", cells=cells)


def _runs(cell: Cell, row: CellTraffic | None, name: str) -> tuple[Trace, ...]:
    if row is None:
        return ()
    if name == "uplink_ratio":
        amounts: Sequence[float] = [row.ratio] * len(cell.runs) if row.ratio else []
    else:
        spent = row.rounds if name == "rounds" else row.spent
        amounts = [] if spent.missed else [x / (1.0 if name == "rounds" else GIBIBYTE) for x in spent.amounts]
    return tuple(replace(run, values=(x,) * len(run.rounds)) for run, x in zip(cell.runs, amounts, strict=False))
