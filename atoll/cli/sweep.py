"""The `atoll sweep` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from atoll.cli.common import (
    Address,
    Executor,
    Overrides,
    ResumeTasks,
    Verdict,
    Where,
    console,
    errors,
    imports,
    retyped,
    retyped_overrides,
    say,
    say_how_to_resume,
    with_metric,
)

if TYPE_CHECKING:
    from atoll.suites.sweeps import Sweep, SweepPlan


def sweep(
    file: Annotated[Path, typer.Argument(help="An experiment in TOML with a [sweep] table.")],
    set_: Overrides = None,
    metric: Verdict = None,
    executor: Executor = "local",
    address: Address = None,
    jobs: Annotated[int | None, typer.Option(help="Tasks at once; default: 1, on Ray what it takes.")] = None,
    device: Where = "auto",
    out: Annotated[Path | None, typer.Option(help="The sweep's folder; default: runs/<name of the file>.")] = None,
    resume: ResumeTasks = False,
    no_stack: Annotated[bool, typer.Option("--no-stack", help="Run every cell by itself.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells; run and write nothing.")] = False,
) -> None:
    """Run an experiment with every combination of the values in its [sweep] table."""
    with imports():
        from atoll.records import INTERRUPTED
        from atoll.suites.sweeps import CellsBar, default_folder, plan, run

    set_ = with_metric(set_, metric)
    made = plan(file, set_)
    folder = out or default_folder(file)
    if dry_run:
        _print_cells(made, folder, made.table.stack and not no_stack, device)
        return
    with CellsBar(len(made.cells), console) as bar:
        done = run(
            made,
            folder,
            executor=executor,
            jobs=jobs,
            address=address,
            resume=resume,
            device=device,
            stack=False if no_stack else None,
            events=bar,
        )
    if done.status == INTERRUPTED:
        words = ["atoll", "sweep", str(file), *retyped_overrides(set_), *retyped("--executor", executor, "local")]
        words += [*retyped("--address", address), *retyped("--jobs", jobs), *retyped("--device", device, "auto")]
        words += ["--no-stack"] if no_stack else []
        _say_what_is_left(done, [*words, "--out", str(folder), "--resume"])
    _print_results(done)


def _say_what_is_left(done: Sweep, command: list[str]) -> None:
    say(f"Stopped after {len(done.done())} of {_counted(len(done.cells))}; those under way have a checkpoint.")
    say_how_to_resume(command)
    sys.exit(130)


def _print_cells(made: SweepPlan, folder: Path, stack: bool, device: Where) -> None:
    from atoll.records import SweepFolder
    from atoll.suites.sweeps import stacks

    place = SweepFolder(folder)
    groups = stacks(made.cells, device) if stack else [[cell] for cell in made.cells]
    grid = Table(title=f"{_counted(len(made.cells))} in {len(groups)} tasks", title_justify="left")
    grid.add_column("cell", overflow="fold")
    grid.add_column("digest", no_wrap=True)
    grid.add_column("task", justify="right")
    grid.add_column("state", overflow="fold")
    number = {cell.name: i for i, group in enumerate(groups, start=1) for cell in group}
    for cell in made.cells:
        grid.add_row(cell.name, cell.digest[:8], str(number[cell.name]), place.done(cell) or "to run")
    console.print(grid)


def _print_results(done: Sweep) -> None:
    from atoll.records import SweepFolder
    from atoll.report import summary

    if done.done():
        console.print(summary(done.done()))
        say(f"Cells:  {SweepFolder(done.folder).cells}")
        say(f"Report: {done.report()}")
    if done.failed:
        said = f"{len(done.failed)} of {_counted(len(done.cells))} failed; --resume tries them again:"
        say(said, "red", errors, wrap=True)
        for name, why in done.failed.items():
            say(f"  {name}: {why}", to=errors)
        sys.exit(1)


def _counted(cells: int) -> str:
    return f"{cells:,} cell{'' if cells == 1 else 's'}"
