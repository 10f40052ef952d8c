"""What a suite would run, and which suites there are, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from atoll.records import SuiteFolder
from atoll.report import TextTable, counted, number_columns, rich_table, row, text_columns
from atoll.suites.estimate_steps import Steps
from atoll.suites.experiments import CellPlan
from atoll.suites.run import Work, prepare
from atoll.suites.suite import FULL, Suite, read, shipped
from atoll.suites.sweeps import SweepCell, stacks


def plan_table(work: Work, folder: SuiteFolder) -> tuple[Table, str]:
    """What would be run, cell by cell, and all of it in a line."""
    steps, blocks = Steps(), len(work.suite.blocks) > 1
    whole: list[int | None] = []
    rows = []
    for job in work.chosen:
        trials = [c for option in job.options for c in option.trials]
        finals = [] if work.tuning == "paper" and job.tuned else list(job.options[0].finals)
        done = sum(folder.done(c) for c in _all(job))
        number = _steps([*trials, *finals], steps)
        whole.append(number)
        name = f"{job.place.block}:{job.place.name}" if blocks else job.place.name
        rows.append(row(name, str(len(trials)), str(len(finals)), str(done), _big(number)))
    heads = (*text_columns("cell"), *number_columns("trials", "runs", "done", "steps"))
    return rich_table(TextTable(heads, tuple(rows), _title(work))), _line(work, folder, whole)


def _all(job: CellPlan) -> list[SweepCell]:
    by_digest = {c.digest: c for option in job.options for c in (*option.trials, *option.finals)}
    return list(by_digest.values())


def second_stage(work: Work) -> list[SweepCell]:
    """Runs of the second stage, with the first settings in place of those that the trials will choose."""
    return [] if work.tuning == "paper" else [c for job in work.chosen if job.tuned for c in job.options[0].finals]


def _line(work: Work, folder: SuiteFolder, steps: Sequence[int | None]) -> str:
    first, second = work.first(), second_stage(work)
    left = folder.left(first)
    tasks = len(stacks(left)) + len(stacks(second))
    known = [s for s in steps if s is not None]
    unknown = (
        "" if len(known) == len(steps) else f" (without {counted(len(steps) - len(known), 'cell')}: data not here)"
    )
    return (
        f"{counted(len(work.chosen), 'cell')}, {counted(len(first) + len(second), 'run')}, "
        f"{len(first) - len(left):,} of the first stage done, {counted(tasks, 'task')} left; "
        f"about {sum(known):,} steps of clients in all{unknown}."
    )


def _steps(cells: Sequence[SweepCell], steps: Steps) -> int | None:
    counts = [steps(cell.experiment) for cell in cells]
    return None if None in counts else sum(n for n in counts if n is not None)


def _big(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _title(work: Work) -> str:
    how = {"validation": f"{work.suite.trials} trials for every method", "paper": "the published grid"}
    grids = any(job.place.grid and job.place.trials > 1 for job in work.chosen)
    how["none"] = "none, so grids are not tried: --tuning validation" if grids else "none"
    return f"{work.suite.title} ({work.suite.size} size; tuning: {how[work.tuning]})"


def describe_suites(which: Sequence[str | Path] | None = None) -> list[tuple[str, str, list[str]]]:
    """Suites, what they are, and how much; those that come with the package unless said."""
    suites = [read(name) for name in (shipped() if which is None else which)]
    return [(suite.name, suite.title, [*([suite.about] if suite.about else []), *_sizes(suite)]) for suite in suites]


def _sizes(suite: Suite) -> list[str]:
    return [f"{size}: {_amount(suite, size)}" for size in dict.fromkeys([*suite.sizes, FULL])]


def _amount(suite: Suite, size: str) -> str:
    work = prepare(suite, size=size)
    first, second = work.first(), second_stage(work)
    rounds = sum(cell.experiment.rounds for cell in (*first, *second))
    return f"{counted(len(work.chosen), 'cell')}, {counted(len(first) + len(second), 'run')}, {rounds:,} rounds"
