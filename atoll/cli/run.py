"""The `atoll run` command: an experiment, or the quickstart."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.table import Table

from atoll.cli import common
from atoll.cli.common import (
    Overrides,
    Quiet,
    Verbose,
    Verdict,
    Where,
    console,
    errors,
    followed,
    hushed,
    imports,
    retyped,
    retyped_overrides,
    say,
    with_metric,
)
from atoll.cli.remembered import load, remembered

if TYPE_CHECKING:
    from atoll.experiment import Experiment
    from atoll.records import RunFolder
    from atoll.runs import Run


def run(
    file: Annotated[Path | None, typer.Argument(help="An experiment in TOML. Left out: the quickstart.")] = None,
    set_: Overrides = None,
    metric: Verdict = None,
    device: Where = "auto",
    out: Annotated[Path | None, typer.Option(help="The run's folder; default: a new one in runs/.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run, or with --rounds to more rounds.")
    ] = False,
    rounds: Annotated[int | None, typer.Option(help="The same as --set rounds=N.")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Say where the time of a few rounds goes.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run an experiment, or the quickstart if no file is named. Under torchrun: one run, on all its processes."""
    overrides = [*with_metric(set_, metric), *([] if rounds is None else [f"rounds={rounds}"])]
    try:
        with hushed(quiet or _another_rank()):
            if file is None:
                _quickstart(overrides, device, out, verbose)
            else:
                _run_file(file, overrides, device, out, resume, profile, verbose)
    except KeyboardInterrupt:  # while torch was imported, or after the run
        errors.print("Stopped while nothing was being run.")
        sys.exit(130)


def _another_rank() -> bool:
    """Rank 0 speaks for all."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return False
    from atoll.engines.ranks import join

    return join().rank > 0


def _run_file(
    file: Path, overrides: list[str], device: Where, out: Path | None, resume: bool, profile: bool, verbose: bool
) -> None:
    from atoll.records import INTERRUPTED

    experiment = load(file, overrides)
    done = _run(experiment, out, resume, device, profile, verbose)
    _say_how(done)
    if done.status == INTERRUPTED:
        say(f"Stopped after round {len(done.history)} of {experiment.rounds}, with a checkpoint.", wrap=True)
        _go_on([*_command(file, overrides, device, done.folder), "--resume"])
    if not _another_rank():
        _show(done, profile)


def _quickstart(overrides: list[str], device: Where, out: Path | None, verbose: bool) -> None:
    with imports():
        from atoll.cli.quickstart import quickstart
        from atoll.records import INTERRUPTED

    remembered("catalogue")  # what comes next is a look at lists, or a file of one's own
    ran = quickstart(out or Path("runs/quickstart"), overrides, device, verbose, _another_rank())
    if ran[-1].status == INTERRUPTED:
        _go_on(_command(None, overrides, device, out))


def _run(experiment: Experiment, out: Path | None, resume: bool, device: Where, profile: bool, verbose: bool) -> Run:
    from atoll.runs import run

    shown = followed(None, verbose)
    try:
        return run(experiment, out, resume=resume, device=device, callbacks=[shown], progress=False, profile=profile)
    except KeyboardInterrupt:
        if not _another_rank():
            errors.print(_what_is_left(experiment, out))
        sys.exit(130)


def _what_is_left(experiment: Experiment, out: Path | None) -> str:
    """After Ctrl-C that did not wait for a round."""
    from atoll.errors import RecordError
    from atoll.records import RunFolder
    from atoll.runs import default_folder

    try:
        safe = RunFolder(out or default_folder(experiment, resume=True)).has_checkpoint()
    except RecordError:
        safe = False
    if safe:
        return "Stopped at once. What was checkpointed is safe: go on with --resume."
    return "Stopped at once, before the first checkpoint: there is nothing to go on from. Run it again."


def _say_how(done: Run) -> None:
    for note in done.info["notes"]:
        say(f"Note: {note}", wrap=True)
    engine = done.info["engine"]
    say(f"Engine: {engine['name']} ({engine['reason']})", wrap=True)


def _show(done: Run, profile: bool) -> None:
    from atoll.records import FINISHED, RunFolder
    from atoll.report import summary

    if done.status != FINISHED:
        say(done.status.capitalize() + ".", wrap=True)
    console.print(summary([done.folder]))
    if void := done.info.get("secure", {}).get("void", 0):
        say(f"Void:   {void} of {len(done.history)} rounds, of which nothing was learned: too few clients stayed")
    if best := done.best:
        say(f"Best:   round {best['round']} ({best['on']} {best['value']:.4g}), kept as best.pt")
    say(f"Run:    {done.folder}")
    say(f"Report: {done.report()}")
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
    say(f"Profile: {folder.profile_page}")
    say(f"Trace:   {folder.trace}")


def _command(file: Path | None, overrides: list[str], device: str, out: Path | None) -> list[str]:
    words = [*_launcher(), "run", *([] if file is None else [str(file)]), *retyped_overrides(overrides)]
    return [*words, *retyped("--device", device, "auto"), *retyped("--out", out)]


def _launcher() -> list[str]:
    world = common.world()
    if world is None or world.size == 1:
        return ["atoll"]
    machines = world.size // world.local_size
    where = ["--nnodes", str(machines)] if machines > 1 else ["--standalone"]
    return ["torchrun", *where, "--nproc-per-node", str(world.local_size), "-m", "atoll"]


def _go_on(command: list[str]) -> NoReturn:
    common.say_how_to_resume(command)
    sys.exit(130)
