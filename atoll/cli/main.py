"""The `atoll` command."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from atoll.cli.audit import audit
from atoll.cli.bench import bench
from atoll.cli.compare import advise, compare
from atoll.cli.data import app as data_app
from atoll.cli.privacy import app as privacy_app
from atoll.cli.sweep import sweep
from atoll.errors import AtollError, ConfigError

if TYPE_CHECKING:
    from atoll.engines.ranks import World
    from atoll.records import RunFolder

app = typer.Typer(
    help="Simulate, benchmark and evaluate federated learning.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data_app, name="data")
app.add_typer(privacy_app, name="privacy")
app.command()(sweep)
app.command()(bench)
app.command()(audit)
app.command()(compare)
app.command()(advise)
console = Console()
errors = Console(stderr=True)

Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the file; may be repeated.")
]
DeviceOption = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where to compute.")]


def main() -> None:
    """Run the command; problems the user can put right are shown without a traceback."""
    try:
        app()
    except (AtollError, OSError) as e:
        if not _rank_0_spoke():
            _show(e)
        _last_word()
        sys.exit(2 if isinstance(e, ConfigError) else 1)
    except SystemExit as e:
        if e.code:  # a rank that ends with an error ends the others: rank 0 goes first
            _rank_0_spoke()
            _last_word()
        raise


def _world() -> World | None:
    """The world of ranks, if this command has joined one."""
    ranks = sys.modules.get("atoll.engines.ranks.world")
    return ranks.joined() if ranks else None


def _rank_0_spoke() -> bool:
    """Is this another rank, and has rank 0 said what there is to say?"""
    world = _world()
    return world is not None and world.rank > 0 and world.notes is not None and world.notes.said()


def _last_word() -> None:
    world = _world()
    if world is not None and world.rank == 0 and world.notes is not None:
        world.notes.left()


def _show(e: AtollError | OSError) -> None:
    if isinstance(e, ConfigError):
        many = len(e.problems) > 1
        errors.print(f"[bold red]{'These' if many else 'This'} must be put right first:[/]")
        for problem in e.problems:
            errors.print(f"  {problem}", markup=False, highlight=False, soft_wrap=True)
    elif isinstance(e, AtollError):
        errors.print(str(e), style="red", markup=False, highlight=False, soft_wrap=True)
    else:  # a page or a figure that cannot be written
        what = f"{e.filename}: {e.strerror}. Name another place." if e.filename else str(e)
        errors.print(what, style="red", markup=False, highlight=False, soft_wrap=True)


@app.command()
def run(
    file: Annotated[Path | None, typer.Argument(help="An experiment in TOML. Left out: the quickstart.")] = None,
    set_: Overrides = None,
    device: DeviceOption = "auto",
    out: Annotated[Path | None, typer.Option(help="The run's folder; default: a new one in runs/.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Say where the time of a few rounds goes.")] = False,
) -> None:
    """Run an experiment, or the quickstart if no file is named. Under torchrun: one run, on all its processes."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from atoll.engines.ranks import join

        console.quiet = join().rank > 0  # rank 0 speaks for all
    from atoll.records import FINISHED, INTERRUPTED, RunFolder

    if file is None:
        from atoll.cli.quickstart import quickstart

        ran = quickstart(console, out or Path("runs/quickstart"), set_ or [], device)
        if ran[-1].status == INTERRUPTED:
            _go_on(_command(None, set_ or [], device, out))
        return
    from atoll.experiment import load
    from atoll.report import summary
    from atoll.runs import Bar
    from atoll.runs import run as run_

    experiment = load(file, set_ or [])
    try:
        with Bar(experiment.label or str(experiment.algorithm["name"]), console) as bar:
            done = run_(experiment, out, resume=resume, device=device, watch=bar, profile=profile)
    except KeyboardInterrupt:
        if not console.quiet:
            errors.print("Stopped at once. What was checkpointed is safe: go on with --resume.")
        sys.exit(130)
    for note in done.info["notes"]:
        console.print(f"Note: {note}", markup=False, highlight=False)
    engine = done.info["engine"]
    console.print(f"Engine: {engine['name']} ({engine['reason']})", markup=False, highlight=False)
    if done.status == INTERRUPTED:
        console.print(f"Stopped after round {len(done.history)} of {experiment.rounds}, with a checkpoint.")
        _go_on([*_command(file, set_ or [], device, done.folder), "--resume"])
    if console.quiet:
        return
    if done.status != FINISHED:
        console.print(done.status.capitalize() + ".", markup=False, highlight=False)
    console.print(summary([done.folder]))
    console.print(f"Run:    {done.folder}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"Report: {done.report()}", markup=False, highlight=False, soft_wrap=True)
    if profile:
        _show_profile(RunFolder(done.folder))


def _show_profile(folder: RunFolder) -> None:
    found = folder.phases()
    if found is None:
        console.print("Profile: no round was left to look at.")
        return
    whole = sum(found["seconds"].values()) or 1.0
    table = Table("phase", "ms", "share", title=f"The mean of {found['rounds']} rounds, piece by piece")
    for name, seconds in found["seconds"].items():
        table.add_row(name, f"{1e3 * seconds:.3f}", f"{seconds / whole:.1%}")
    console.print(table)
    console.print(f"Profile: {folder.profile_page}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"Trace:   {folder.trace}", markup=False, highlight=False, soft_wrap=True)


def _command(file: Path | None, overrides: list[str], device: str, out: Path | None) -> list[str]:
    words = [*_launcher(), "run", *([] if file is None else [str(file)])]
    words += [word for override in overrides for word in ("--set", override)]
    words += [] if device == "auto" else ["--device", device]
    return words + ([] if out is None else ["--out", str(out)])


def _launcher() -> list[str]:
    world = _world()
    if world is None or world.size == 1:
        return ["atoll"]
    machines = world.size // world.local_size
    where = ["--nnodes", str(machines)] if machines > 1 else ["--standalone"]
    return ["torchrun", *where, "--nproc-per-node", str(world.local_size), "-m", "atoll"]


def _go_on(command: list[str]) -> NoReturn:
    """Say how to go on after Ctrl-C, in words that a shell takes as they are."""
    console.print("Go on with:", highlight=False)
    console.print(f"  {shlex.join(command)}", markup=False, highlight=False, soft_wrap=True)
    sys.exit(130)


@app.command()
def check(
    target: Annotated[
        str, typer.Argument(help="An experiment in TOML, or an algorithm such as my_lab.algorithms:Mine.")
    ],
    set_: Overrides = None,
    device: DeviceOption = "auto",
) -> None:
    """Say what would run: parameters, clients, steps, memory, time and bytes per round. Nothing is written."""
    if ":" in target and not Path(target).exists():
        from atoll.cli.check import check_import

        check_import(target, console)
        return
    from atoll.cli.check import estimate
    from atoll.experiment import load

    estimate(load(target, set_ or []), device, console)


@app.command(name="list")
def list_(
    kind: Annotated[str, typer.Argument(help="algorithms, transforms, engines, data, partitions, models, suites...")],
) -> None:
    """Print names, options, defaults and meanings, from the same signatures that check a file."""
    if kind == "suites":
        from atoll.suites import suites_table

        console.print(suites_table())
        return
    from atoll.experiment import table

    console.print(table(kind))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; or one suite's folder, or its results.json.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The page; default: report.html here, of a suite in its folder.")
    ] = None,
    figures: Annotated[
        list[str] | None, typer.Option(help="Also write each figure as png or pdf; may be repeated.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="The page's title.")] = None,
) -> None:
    """Put runs side by side on one page that opens offline; or draw the page of a suite again."""
    from atoll.report import summary, write

    wrong = sorted(set(figures or []) - {"png", "pdf"})
    if wrong:
        raise ConfigError(f"--figures: {wrong[0]!r} is not known. Use png or pdf.")
    if any(map(_is_suite, runs)):
        _report_suite(runs, out, figures or [], title)
        return
    page = write(runs, out or Path("report.html"), figures or [], title)  # type: ignore[arg-type]
    console.print(summary(runs))
    console.print(f"Report: {page}", markup=False, highlight=False, soft_wrap=True)


def _is_suite(path: Path) -> bool:
    """Does it hold a suite's results?"""
    from atoll.records import is_results

    return is_results(path)


def _report_suite(paths: list[Path], out: Path | None, figures: list[str], title: str | None) -> None:
    from dataclasses import replace

    from atoll.records import read_results
    from atoll.report.suite import write, write_page

    runs = [path for path in paths if not _is_suite(path)]
    if runs:
        raise ConfigError(
            f"report: {runs[0]} is a run and {_others(paths, runs)[0]} a suite. Report on each by itself."
        )
    if len(paths) > 1:
        raise ConfigError(f"report: takes one suite at a time (got {len(paths)}). For many: atoll leaderboard.")
    if figures:
        raise ConfigError(
            "--figures: is for runs. Of a suite name the cells: atoll report <folder>/cells/* --figures pdf."
        )
    results = read_results(paths[0])
    results = replace(results, title=title) if title else results
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    page = write_page(results, out) if out else write(results, folder)
    console.print(f"Report: {page}", markup=False, highlight=False, soft_wrap=True)


def _others(paths: list[Path], runs: list[Path]) -> list[Path]:
    return [path for path in paths if path not in runs]


@app.command()
def leaderboard(
    results: Annotated[list[Path], typer.Argument(help="Suites' folders, or their results.json.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path("leaderboard.html"),
) -> None:
    """Put many suites on one page: who leads each row, by how much, and average ranks over all of them."""
    from atoll.records import read_results
    from atoll.report.suite import leaderboard as write

    page = write([read_results(path) for path in results], out)
    console.print(f"Leaderboard: {page}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def version() -> None:
    """Print the version."""
    from atoll import __version__

    console.print(__version__, highlight=False)


if __name__ == "__main__":
    main()
