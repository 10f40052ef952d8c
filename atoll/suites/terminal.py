"""Tables of a suite for a terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from atoll.records import SIMULATION, Cell, Results, SuiteFolder, claims, shown_upper, weakest_claims
from atoll.suites.estimate_steps import Steps
from atoll.suites.experiments import CellPlan
from atoll.suites.run import Work, prepare
from atoll.suites.suite import FULL, Suite, counted, read, shipped
from atoll.suites.sweeps import SweepCell, stacks

_FEW = 2  # seeds, below which there is no spread
_WIDE = 5  # methods that stand beside each other in a narrow terminal


def results_table(results: Results, block: str) -> Table:
    """The table of one block: settings by methods, or methods by settings where that is narrower."""
    rows = results.rows(block)
    methods = list(dict.fromkeys(method for row in rows.values() for method in row))
    best = {name: _best(list(row.values()), results.higher) for name, row in rows.items()}
    texts = {(n, m): _shown(row.get(m), results.scale, best[n]) for n, row in rows.items() for m in methods}
    unit = " in percent" if results.scale == 100 else ""
    better = "higher is better" if results.higher else "lower is better"
    title = f"{results.titles.get(block) or block}: {results.metric}{unit}, last round, {better}"
    table = Table(title=Text(title, style="bold"), title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD)
    table.min_width = min(len(title), 76)
    turned = len(methods) > max(_WIDE, len(rows))
    table.add_column(results.axes[-1] if turned else "/".join(results.axes[:-1]), overflow="fold")
    for head in ["/".join(name) for name in rows] if turned else methods:
        table.add_column(Text(head), justify="right", overflow="fold")
    for method in methods if turned else ():
        table.add_row(Text(method), *(texts[name, method] for name in rows))
    for name in () if turned else rows:
        table.add_row(Text("/".join(name)), *(texts[name, method] for method in methods))
    table.caption = Text(_caption([c for row in rows.values() for c in row.values()]), style="dim")
    return table


def mean(cell: Cell) -> float:
    """The mean over seeds of the last round; NaN without runs, or where one is not finite."""
    return statistics.fmean(run.last for run in cell.runs) if cell.runs else math.nan


def _best(cells: Sequence[Cell], higher: bool) -> float:
    """Of the cells that have all their seeds, and more than one, and repeat no mistake."""
    whole = [c for c in cells if len(c.runs) >= max(c.wanted, _FEW) and c.quirk is None]
    known = [mean(c) for c in whole if math.isfinite(mean(c))]
    return (max if higher else min)(known, default=math.nan)


def _shown(cell: Cell | None, scale: float, best: float) -> Text:
    if cell is None:
        return Text("")
    if not cell.runs:
        return Text("failed" if cell.failed else "-", style="red" if cell.failed else "dim")
    value = mean(cell)
    marked = value == best and cell.quirk is None
    said = _digits(scale * value, scale)
    if len(cell.runs) >= _FEW:
        said += f"±{_digits(scale * statistics.stdev(run.last for run in cell.runs), scale)}"
    if len(cell.runs) < max(cell.wanted, _FEW):
        said += f" ({counted(len(cell.runs), 'seed')})"
    return Text(f"*{said}" if marked else said, style="bold" if marked else "")


def _digits(value: float, scale: float) -> str:
    return f"{value:.1f}" if scale == 100 else f"{value:.4g}"


def _caption(cells: Sequence[Cell]) -> str:
    seeds = sorted({len(c.runs) for c in cells if c.runs})
    lines = [f"± standard deviation over {' or '.join(map(str, seeds))} seeds; * best of its setting."]
    if seeds in ([], [1]):
        lines = ["One seed: a single run, not a result. More: --seeds 3 --resume."] if seeds else ["No runs yet."]
    elif 1 in seeds:
        lines.append("(1 seed): a single run, not a result.")
    return "\n".join([*lines, *_privacy(cells)])


def _privacy(cells: Sequence[Cell]) -> list[str]:
    """In how many cells an epsilon holds, where any run has an account: each with its own words on the page."""
    found = [weakest_claims({run.seed: claims(run.privacy) for run in cell.runs}) for cell in cells if cell.runs]
    held = [max(c.epsilon or 0.0 for c in cell if c.holds) for cell in found if any(c.holds for c in cell)]
    span = f" ({shown_upper(min(held))} to {shown_upper(max(held))})" if held else ""
    said = [f"An epsilon holds in {len(held)} of {counted(len(found), 'cell')}{span}: the page has each."]
    simulated = sum(any(c.kind == "simulates" for c in cell) for cell in found)
    said += [f"{counted(simulated, 'cell')}: {SIMULATION}."] if simulated else []
    return said if any(found) else []


def plan_table(work: Work, folder: SuiteFolder) -> tuple[Table, str]:
    """What would be run, cell by cell, and all of it in a line."""
    table = Table(title=Text(_title(work)), title_justify="left")
    for head in ("cell", "trials", "runs", "done", "steps"):
        table.add_column(head, overflow="fold", justify="left" if head == "cell" else "right")
    steps, blocks = Steps(), len(work.suite.blocks) > 1
    whole: list[int | None] = []
    for job in work.chosen:
        trials = [c for option in job.options for c in option.trials]
        finals = [] if work.tuning == "paper" and job.tuned else list(job.options[0].finals)
        done = sum(folder.done(c) for c in _all(job))
        number = _steps([*trials, *finals], steps)
        whole.append(number)
        name = f"{job.place.block}:{job.place.name}" if blocks else job.place.name
        table.add_row(Text(name), str(len(trials)), str(len(finals)), str(done), _big(number))
    return table, _line(work, folder, whole)


def _all(job: CellPlan) -> list[SweepCell]:
    found = {c.digest: c for option in job.options for c in (*option.trials, *option.finals)}
    return list(found.values())


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
    found = [steps(cell.experiment) for cell in cells]
    return None if None in found else sum(n for n in found if n is not None)


def _big(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _title(work: Work) -> str:
    how = {"validation": f"{work.suite.trials} trials for every method", "paper": "the published grid", "none": "none"}
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
