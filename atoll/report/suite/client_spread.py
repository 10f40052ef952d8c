"""How a method treats its clients, and what it cost: the same rows and methods as the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from atoll.records import Cell, Results, Trace
from atoll.report import prose
from atoll.report.text_table import TextColumn, TextRow, TextTable, number_columns, row, text_columns

SECONDS = (
    "Seconds of drawing clients, training, server and record; evaluation is not counted.",
    "Of runs that shared a stack of k, a k-th of the stack's seconds: what a run cost, not what it takes alone.",
)
COSTS = (
    *text_columns("method"),
    *number_columns("runs"),
    TextColumn("tuning runs", "number", "runs whose settings were not chosen"),
    TextColumn("MB a run", "number", "megabytes (1e6 bytes), up and down, all clients, mean over runs"),
    TextColumn("seconds a run", "number", "mean over runs, evaluation not counted"),
    *number_columns("runs sharing a stack", "seconds in all", "of which tuning"),
)


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


def clients(results: Results, block: str) -> TextTable | None:
    """The worst-off tenth of the clients, and the standard deviation over clients; None where no run has them."""
    spread = {p: {m: _clients(results, cell) for m, cell in cells.items()} for p, cells in results.rows(block).items()}
    known = {path: entries for path, entries in spread.items() if any(entries.values())}
    methods = dict.fromkeys(method for entries in known.values() for method in entries)
    heads = [head for method in methods for head in number_columns("worst 10\u00a0%", "std", group=method)]
    lines = [[path, *(entries.get(m) or (prose.MISSING,) * 2 for m in methods)] for path, entries in known.items()]
    rows = tuple(row(" / ".join(path), *chain(*entries)) for path, *entries in lines)
    name = " / ".join(results.axes[:-1]) or "setting"
    return TextTable((*text_columns(name), *heads), rows, style="wide") if rows else None


def costs(results: Results) -> list[MethodCosts]:
    """What every method cost, in the order of the table."""
    methods = dict.fromkeys(cell.method for cell in results.cells)
    all_costs = [_costs(method, [cell for cell in results.cells if cell.method == method]) for method in methods]
    return [one for one in all_costs if one.runs or one.trials]


def costs_table(results: Results) -> TextTable:
    """The same to be shown."""
    stacked = any(run.together > 1 for cell in results.cells for run in cell.runs)
    return TextTable(COSTS, tuple(map(_cost_row, costs(results))), notes=SECONDS[: 1 + stacked], style="wide")


def _cost_row(one: MethodCosts) -> TextRow:
    stacks = ", ".join(map(str, one.stacks)) or prose.MISSING
    tuning = f"{100 * one.tuning / one.spent if one.spent else 0:.0f} %"
    spent = prose.significant(one.spent)
    return row(one.method, one.runs, one.trials, one.megabytes, one.seconds, stacks, spent, tuning)


def seconds(run: Trace) -> float:
    """The run's share: the seconds of a stack belong to all of its runs."""
    return run.seconds[-1] / run.together if run.seconds else 0.0


def _clients(results: Results, cell: Cell) -> tuple[str, ...] | None:
    runs = [run.clients for run in cell.runs if {"worst_decile", "std"} <= set(run.clients)]
    if not runs:
        return None
    means = [results.scale * _mean(run[key] for run in runs) for key in ("worst_decile", "std")]
    return tuple(prose.number(mean, 1) if results.scale == 100 else prose.significant(mean) for mean in means)


def _costs(method: str, cells: Sequence[Cell]) -> MethodCosts:
    runs = [run for cell in cells for run in cell.runs]
    chosen = {run.digest for run in runs}
    trials = [run for cell in cells for trial in cell.trials for run in trial.runs if run.digest not in chosen]
    every = [*runs, *trials]
    return MethodCosts(
        method,
        len(runs),
        len(trials),
        prose.significant(_mean(run.bytes[-1] / 1e6 for run in every if run.bytes)),
        prose.significant(_mean(map(seconds, every))),
        tuple(sorted({run.together for run in every if run.together > 1})),
        sum(map(seconds, every)),
        sum(map(seconds, trials)),
    )


def _mean(values: Iterable[float]) -> float:
    terms = list(values)
    return sum(terms) / len(terms) if terms else 0.0
