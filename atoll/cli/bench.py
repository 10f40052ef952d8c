"""The `atoll bench` command."""

from __future__ import annotations

import re
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from atoll.cli.common import (
    Address,
    Executor,
    ResumeTasks,
    Where,
    console,
    errors,
    imports,
    retyped,
    say,
    say_how_to_resume,
)
from atoll.errors import ConfigError

if TYPE_CHECKING:
    from atoll.suites import Bench, Work

_WORKER_GB = 3.0  # of memory that a task may need
_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def bench(
    suite: Annotated[str, typer.Argument(help="A suite (`atoll list suites`), or a file with one of your own.")],
    size: Annotated[str, typer.Option(help="How much of it: full, smoke, or another size of the suite.")] = "full",
    only: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Cells such as 'fmnist/*/fedavg'; may be repeated.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each cell; default: as the suite says.")] = None,
    tuning: Annotated[
        Literal["validation", "paper", "none"] | None,
        typer.Option(help="How settings are found; default: as the suite says."),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Stop after 90s, 30m or 2h, to go on later.")
    ] = None,
    executor: Executor = "local",
    address: Address = None,
    jobs: Annotated[
        int | None, typer.Option(help="Tasks at once; default: a core each, 1 on a GPU, on Ray what it takes.")
    ] = None,
    device: Where = "auto",
    out: Annotated[Path | None, typer.Option(help="The suite's folder; default: runs/bench/<suite>[-size].")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of every experiment; may be repeated."),
    ] = None,
    figures: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Only these figures of the suite, with commas; none: only its table."),
    ] = None,
    resume: ResumeTasks = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run; run and write nothing.")] = False,
) -> None:
    """Run a suite: a table of experiments, tuned alike.

    Every cell at several seeds; then the table, results.json and a page; then the suite's figures, where it has any
    and no cells are named.
    """
    with imports():
        from atoll.cli.bench_figures import chosen_figures, draw_figures, print_figures
        from atoll.records import INTERRUPTED, SuiteFolder
        from atoll.suites import command, default_folder, prepare

    seconds = None if budget is None else parsed(budget)
    work = prepare(suite, size=size, only=only or [], seeds=seeds, tuning=tuning, overrides=set_ or [])
    folder = out or default_folder(work.suite)
    drawn = chosen_figures(work.suite, figures, bool(only))
    until = None if seconds is None else time.monotonic() + seconds
    how: dict[str, Any] = {"overrides": set_ or [], "device": device, "until": until}
    how |= {"seeds": seeds, "jobs": jobs or workers(device)}
    if dry_run:
        if figures in (None, "none"):
            _print_plan(work, folder)
        print_figures(work.suite, drawn, set_ or [])
        return
    if figures not in (None, "none"):
        draw_figures(work.suite, drawn, folder, **how)
        return
    SuiteFolder(folder).claim(resume)
    done = _run(work, folder, jobs, budget=seconds, executor=executor, address=address, resume=resume, device=device)
    _print_results(done)
    if done.status != INTERRUPTED:
        draw_figures(work.suite, drawn, folder, **how)
    if done.status == INTERRUPTED:
        words = shlex.split(command(suite, size, only or [], seeds, tuning, set_ or [], path=True))
        words += [*retyped("--budget", budget), *retyped("--executor", executor, "local")]
        words += [*retyped("--address", address), *retyped("--jobs", jobs), *retyped("--device", device, "auto")]
        words += retyped("--figures", figures)
        why = f"The budget of {budget} is used up" if done.late else "Stopped"
        say(f"{why}: {done.left} of {len(work.chosen)} cells are not done; those under way have a checkpoint.")
        say_how_to_resume([*words, "--out", str(folder), "--resume"])
    _print_failed(done)
    if code := _exit_code(done):
        sys.exit(code)


def _run(work: Work, folder: Path, jobs: int | None, *, executor: Executor, device: Where, **options: Any) -> Bench:
    """The suite under a bar; Ctrl-C for the second time leaves at once."""
    from atoll.suites import SuiteBar, run, second_stage
    from atoll.suites.sweeps import CellLines

    try:
        at_once = jobs or (workers(device) if executor == "local" else None)
        events = SuiteBar(second_stage(work), at_once or 1, console) if console.is_terminal else CellLines(say)
        with events as bar:
            return run(work, folder, executor=executor, jobs=at_once, device=device, events=bar, **options)
    except KeyboardInterrupt:
        errors.print("Stopped at once. What was checkpointed is safe: go on with --resume.")
        sys.exit(130)


def _exit_code(done: Bench) -> int:
    from atoll.records import INTERRUPTED

    if done.status == INTERRUPTED and not done.late:
        return 130
    return 1 if done.failed else 0


def workers(device: Where) -> int:
    """How many tasks at once: a core each as far as memory goes, and one on a GPU, which one task keeps busy."""
    from atoll.experiment import find_device
    from atoll.runs import hardware

    here = find_device(device)
    known = hardware(here)
    return 1 if here.type == "cuda" else max(1, min(int(known["cores"]), int(known["memory_gb"] / _WORKER_GB)))


def parsed(budget: str) -> float:
    """Seconds of a time such as 90s, 30m, 1.5h or 1h30m.

    >>> parsed("90"), parsed("30m"), parsed("1h30m")
    (90.0, 1800.0, 5400.0)
    """
    pieces = re.findall(r"(\d+(?:\.\d+)?)\s*(min|[smhd]?)", budget.strip().lower())
    whole = "".join(number + unit for number, unit in pieces)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in pieces)
    if not pieces or whole != re.sub(r"\s", "", budget.lower()) or seconds <= 0:
        raise ConfigError(f"--budget: must be a time such as 90s, 30m or 2h (got {budget!r}).")
    return seconds


def _print_plan(work: Work, folder: Path) -> None:
    from atoll.records import SuiteFolder
    from atoll.suites import plan_table

    table, line = plan_table(work, SuiteFolder(folder))
    console.print(table)
    say(line)
    say(f"Folder: {folder}")


def _print_results(done: Bench) -> None:
    from atoll.records import SuiteFolder
    from atoll.report.suite import summary

    for block in done.results.blocks():
        console.print(summary(done.results, block))
    page = done.report()
    say(f"Results: {SuiteFolder(done.folder).results_path}")
    if page is not None:
        say(f"Report:  {page}")


def _print_failed(done: Bench) -> None:
    if not done.failed:
        return
    errors.print("These failed; --resume tries again what did not diverge:", style="red", markup=False)
    for name, why in done.failed.items():
        say(f"  {name}: {why}", to=errors)
