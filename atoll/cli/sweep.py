"""The `atoll sweep` command."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from atoll.experiment.setup import Device
    from atoll.suites.sweeps import Sweep, SweepPlan

console = Console()
errors = Console(stderr=True)


def sweep(
    file: Annotated[Path, typer.Argument(help="An experiment in TOML with a [sweep] table.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the file; may be repeated.")
    ] = None,
    executor: Annotated[Literal["local", "ray"], typer.Option(help="Where tasks run.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; default: a Ray on this machine.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Tasks at once; default: 1, on Ray what it takes.")] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")] = "auto",
    out: Annotated[Path | None, typer.Option(help="The sweep's folder; default: runs/<name of the file>.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Run what is left; what is done stays.")] = False,
    no_stack: Annotated[bool, typer.Option("--no-stack", help="Run every cell by itself.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the cells; run and write nothing.")] = False,
) -> None:
    """Run an experiment with every combination of the values in its [sweep] table."""
    from atoll.records import INTERRUPTED
    from atoll.suites.sweeps import CellsBar, default_folder, plan, run

    made = plan(file, set_ or [])
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
        _say(f"Stopped after {len(done.done())} of {_counted(len(done.cells))}; those under way have a checkpoint.")
        words = ["atoll", "sweep", str(file), *(w for change in set_ or [] for w in ("--set", change))]
        words += [] if executor == "local" else ["--executor", executor]
        words += [] if address is None else ["--address", address]
        words += [] if jobs is None else ["--jobs", str(jobs)]
        words += [] if device == "auto" else ["--device", device]
        words += ["--no-stack"] if no_stack else []
        _say(f"Go on with:\n  {shlex.join([*words, '--out', str(folder), '--resume'])}")
        sys.exit(130)
    _print_results(done)


def _print_cells(made: SweepPlan, folder: Path, stack: bool, device: Device) -> None:
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
        _say(f"Cells:  {SweepFolder(done.folder).cells}")
        _say(f"Report: {done.report()}")
    if done.failed:
        said = f"{len(done.failed)} of {_counted(len(done.cells))} failed; --resume tries them again:"
        errors.print(said, style="red", markup=False, highlight=False)
        for name, why in done.failed.items():
            errors.print(f"  {name}: {why}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)


def _counted(cells: int) -> str:
    return f"{cells:,} cell{'' if cells == 1 else 's'}"


def _say(text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
