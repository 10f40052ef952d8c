"""The `atoll bench` command."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from atoll.errors import ConfigError

if TYPE_CHECKING:
    from atoll.experiment.setup import Device
    from atoll.suites import Bench, Work

console = Console()
errors = Console(stderr=True)
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
    executor: Annotated[Literal["local", "ray"], typer.Option(help="Where tasks run.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; default: a Ray on this machine.")] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Tasks at once; default: a core each, 1 on a GPU, on Ray what it takes.")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="The suite's folder; default: runs/bench/<suite>[-size].")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of every experiment; may be repeated."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Run what is left; what is done stays.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run; run and write nothing.")] = False,
) -> None:
    """Run a suite: every cell of a table, tuned alike, at several seeds; then the table, results.json and a page."""
    from atoll.records import INTERRUPTED, SuiteFolder
    from atoll.suites import SuiteBar, default_folder, prepare, run, second_stage

    seconds = None if budget is None else parsed(budget)
    work = prepare(suite, size=size, only=only or [], seeds=seeds, tuning=tuning, overrides=set_ or [])
    folder = out or default_folder(work.suite)
    if dry_run:
        _print_plan(work, folder)
        return
    SuiteFolder(folder).claim(resume)
    try:
        at_once = jobs or (workers(device) if executor == "local" else None)
        with SuiteBar(second_stage(work), at_once or 1, console) as bar:
            done = run(
                work,
                folder,
                budget=seconds,
                executor=executor,
                jobs=at_once,
                address=address,
                resume=resume,
                device=device,
                events=bar,
            )
    except KeyboardInterrupt:
        errors.print("Stopped at once. What was checkpointed is safe: go on with --resume.")
        sys.exit(130)
    _print_results(done)
    if done.status == INTERRUPTED:
        words = _same(suite, size, only or [], seeds, tuning, set_ or [])
        words += [] if budget is None else ["--budget", budget]
        words += [] if executor == "local" else ["--executor", executor]
        words += [] if address is None else ["--address", address]
        words += [] if jobs is None else ["--jobs", str(jobs)]
        words += [] if device == "auto" else ["--device", device]
        why = f"The budget of {budget} is used up" if done.late else "Stopped"
        _say(f"{why}: {done.left} of {len(work.chosen)} cells are not done; those under way have a checkpoint.")
        _say(f"Go on with:\n  {shlex.join([*words, '--out', str(folder), '--resume'])}")
    _print_failed(done)
    if done.status == INTERRUPTED and not done.late:
        sys.exit(130)
    if done.failed:
        sys.exit(1)


def workers(device: Device) -> int:
    """How many tasks at once: a core each as far as memory goes, and one on a GPU, which one task keeps busy."""
    from atoll.experiment.setup import find_device
    from atoll.runs.environment import hardware

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


def _same(
    suite: str, size: str, only: list[str], seeds: int | None, tuning: str | None, overrides: list[str]
) -> list[str]:
    from atoll.suites import command

    return shlex.split(command(suite, size, only, seeds, tuning, overrides, path=True))


def _print_plan(work: Work, folder: Path) -> None:
    from atoll.records import SuiteFolder
    from atoll.suites import plan_table

    table, line = plan_table(work, SuiteFolder(folder))
    console.print(table)
    _say(line)
    _say(f"Folder: {folder}")


def _print_results(done: Bench) -> None:
    from atoll.records import SuiteFolder
    from atoll.report.suite import summary

    for block in done.results.blocks():
        console.print(summary(done.results, block))
    page = done.report()
    _say(f"Results: {SuiteFolder(done.folder).results_path}")
    if page is not None:
        _say(f"Report:  {page}")


def _print_failed(done: Bench) -> None:
    if not done.failed:
        return
    errors.print("These failed; --resume tries again what did not diverge:", style="red", markup=False)
    for name, why in done.failed.items():
        errors.print(f"  {name}: {why}", markup=False, highlight=False, soft_wrap=True)


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
