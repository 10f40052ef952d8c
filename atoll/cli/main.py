"""The `atoll` command: every other one, and how problems are shown."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli import common
from atoll.cli.audit import audit
from atoll.cli.bench import bench
from atoll.cli.card import card
from atoll.cli.certify import certify
from atoll.cli.check import check
from atoll.cli.common import say
from atoll.cli.compare import advise, compare
from atoll.cli.contribution import contribution
from atoll.cli.data import app as data_app
from atoll.cli.listing import list_, version
from atoll.cli.predict import predict
from atoll.cli.privacy import app as privacy_app
from atoll.cli.privacy_attack import attack
from atoll.cli.replay import replay
from atoll.cli.report import leaderboard, report
from atoll.cli.run import run
from atoll.cli.sweep import sweep
from atoll.errors import AtollError, ConfigError, DataError

app = typer.Typer(
    help="Simulate, benchmark and evaluate federated learning.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
COMMANDS: tuple[Callable[..., None], ...] = (
    *(run, check, report, leaderboard, sweep, bench, card, compare, advise),
    *(attack, audit, certify, contribution, predict, replay, version),
)
for command in COMMANDS:
    app.command()(command)
app.command(name="list")(list_)
app.add_typer(data_app, name="data")
app.add_typer(privacy_app, name="privacy")


def _show_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def options(
    asked: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Simulate, benchmark and evaluate federated learning."""


def main() -> None:
    """Run the command; problems the user can put right are shown without a traceback.

    A module in the working folder can be named in a file, as with `python -m`; it never hides an installed one.
    """
    if not sys.stdout.isatty():  # a file has no width: tables get the room that their columns need
        os.environ.setdefault("COLUMNS", "120")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        app()
    except (AtollError, OSError) as e:
        if not _rank_0_spoke():
            _show(e)
        _last_word()
        sys.exit(2 if isinstance(e, ConfigError | DataError) else 1)
    except SystemExit as e:
        if e.code:  # a rank that ends with an error ends the others: rank 0 goes first
            _rank_0_spoke()
            _last_word()
        raise


def _rank_0_spoke() -> bool:
    """Is this another rank, and has rank 0 said what there is to say?"""
    world = common.world()
    return world is not None and world.rank > 0 and world.failures is not None and world.failures.rank_zero_explained()


def _last_word() -> None:
    world = common.world()
    if world is not None and world.rank == 0 and world.failures is not None:
        world.failures.announce_exit()


def _show(e: AtollError | OSError) -> None:
    if isinstance(e, ConfigError):
        many = len(e.problems) > 1
        common.errors.print(f"[bold red]{'These' if many else 'This'} must be put right first:[/]")
        for problem in e.problems:
            say(f"  {problem}", to=common.errors)
    elif isinstance(e, AtollError):
        say(str(e), "red", common.errors)
    else:  # a page or a figure that cannot be written
        say(f"{e.filename}: {e.strerror}. Name another place." if e.filename else str(e), "red", common.errors)


if __name__ == "__main__":
    main()
