"""How a method treats its clients, and what it cost: the same rows and methods as the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from atoll.records import Cell, Results, Trace
from atoll.report.final_table import significant
from atoll.report.suite import prose


@dataclass(frozen=True)
class Spread:
    """One row: for each method the mean over seeds of some numbers as text, None where there is nothing."""

    path: tuple[str, ...]
    entries: Mapping[str, tuple[str, ...] | None]


@dataclass(frozen=True)
class MethodCosts:
    """What a method cost over the whole suite."""

    method: str
    runs: int  # with the chosen settings
    trials: int  # runs that only served to choose them
    megabytes: str  # of a run, mean
    seconds: str  # of a run, mean
    stacks: tuple[int, ...]  # how many runs shared their seconds
    spent: float  # seconds of all runs
    tuning: float  # seconds of the trials that were not chosen


def clients(results: Results, block: str) -> list[Spread]:
    """The worst-off tenth of the clients, and the standard deviation over clients."""
    rows = results.rows(block)
    found = [Spread(path, {m: _clients(results, cell) for m, cell in cells.items()}) for path, cells in rows.items()]
    return [row for row in found if any(row.entries.values())]


def costs(results: Results) -> list[MethodCosts]:
    """What every method cost, in the order of the table."""
    methods = dict.fromkeys(cell.method for cell in results.cells)
    found = [_costs(method, [cell for cell in results.cells if cell.method == method]) for method in methods]
    return [one for one in found if one.runs or one.trials]


def seconds(run: Trace) -> float:
    """The run's share: the seconds of a stack belong to all of its runs."""
    return run.seconds[-1] / run.together if run.seconds else 0.0


def _clients(results: Results, cell: Cell) -> tuple[str, ...] | None:
    runs = [run.clients for run in cell.runs if {"worst_decile", "std"} <= set(run.clients)]
    if not runs:
        return None
    means = [results.scale * _mean(run[key] for run in runs) for key in ("worst_decile", "std")]
    return tuple(prose.number(mean, 1) if results.scale == 100 else significant(mean) for mean in means)


def _costs(method: str, cells: Sequence[Cell]) -> MethodCosts:
    runs = [run for cell in cells for run in cell.runs]
    chosen = {run.digest for run in runs}
    trials = [run for cell in cells for trial in cell.trials for run in trial.runs if run.digest not in chosen]
    every = [*runs, *trials]
    return MethodCosts(
        method,
        len(runs),
        len(trials),
        significant(_mean(run.bytes[-1] / 1e6 for run in every if run.bytes)),
        significant(_mean(map(seconds, every))),
        tuple(sorted({run.together for run in every if run.together > 1})),
        sum(map(seconds, every)),
        sum(map(seconds, trials)),
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0
