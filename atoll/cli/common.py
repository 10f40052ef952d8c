"""What commands share: where they print, options that mean the same everywhere, imports that do not dawdle."""

from __future__ import annotations

import gc
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from atoll.errors import ConfigError

if TYPE_CHECKING:
    from atoll.engines.ranks import World
    from atoll.runs import Shown

console = Console()
errors = Console(stderr=True)

Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the file; may be repeated.")
]
Where = Annotated[str, typer.Option("--device", help="Where to compute: auto, cpu, cuda, or one GPU: cuda:1.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="A line for every round, with all its numbers.")]
Verdict = Annotated[str | None, typer.Option("--metric", help="What leads tables and figures, e.g. auroc.")]
Executor = Annotated[Literal["local", "ray"], typer.Option(help="Where tasks run.")]
Address = Annotated[str | None, typer.Option(help="Of a Ray cluster; default: a Ray on this machine.")]
ResumeTasks = Annotated[bool, typer.Option("--resume", help="Run what is left; what is done stays.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write everything that was found here.")]
PartitionName = Annotated[str | None, typer.Option(help="Clients by this partition, such as dirichlet.")]
Clients = Annotated[int | None, typer.Option(help="Its number of clients.")]
Alpha = Annotated[float | None, typer.Option(help="Its alpha.")]
By = Annotated[str | None, typer.Option(help="Its natural key.")]
PartitionOptions = Annotated[
    list[str] | None, typer.Option("--with", metavar="KEY=VALUE", help="Another option of it; may be repeated.")
]


def say(text: str, style: str | None = None, to: Console = console, wrap: bool = False) -> None:
    """Print text as it stands: nothing in it is markup, and a terminal may wrap it, we do not."""
    to.print(text, style=style, markup=False, highlight=False, soft_wrap=not wrap)


@contextmanager
def hushed(quiet: bool) -> Iterator[None]:
    """Nothing but errors is printed, if so."""
    before, console.quiet = console.quiet, quiet or console.quiet
    try:
        yield
    finally:
        console.quiet = before


def followed(label: str | None, verbose: bool = False) -> Shown:
    """How far a run is: a bar on a terminal, lines in a file or with --verbose."""
    from atoll.runs import Bar, LogLines

    return Bar(label, console) if console.is_terminal and not verbose else LogLines(label, say, verbose)


def print_facts(title: str, facts: Sequence[tuple[str, str]]) -> None:
    """Names and values, side by side."""
    grid = Table(title=title, title_justify="left", show_header=False)
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(name, value)
    console.print(grid)


def say_how_to_resume(command: Sequence[str]) -> None:
    """After Ctrl-C, in words that a shell takes as they are."""
    say(f"Go on with:\n  {shlex.join(command)}")


def retyped(option: str, value: Any, default: Any = None) -> list[str]:
    """The option as it was typed, if it was.

    >>> retyped("--jobs", 2), retyped("--device", "auto", "auto")
    (['--jobs', '2'], [])
    """
    return [] if value == default else [option, str(value)]


def with_metric(overrides: list[str] | None, metric: str | None) -> list[str]:
    """--metric is short for --set metric="..."."""
    return [*(overrides or []), *([] if metric is None else [f'metric="{metric}"'])]


def retyped_overrides(overrides: Sequence[str] | None) -> list[str]:
    """Every --set again."""
    return [word for override in overrides or [] for word in ("--set", override)]


def partition_entry(name: str | None, options: dict[str, Any], more: list[str]) -> dict[str, Any] | None:
    """What --partition and its options say, as a file would; None where there is no --partition."""
    given = {key: value for key, value in options.items() if value is not None}
    if name is None:
        if given or more:
            raise ConfigError("--partition: is missing. Example: --partition dirichlet --clients 20 --alpha 0.3")
        return None
    return with_options("partition", {"name": name, **given}, more)


def with_options(table: str, entry: dict[str, Any], options: Sequence[str]) -> dict[str, Any]:
    """An entry of a file, with options such as "alpha=0.3" put in."""
    from atoll.experiment import override

    return dict(override({table: entry}, [f"{table}.{option}" for option in options])[table])


@contextmanager
def imports() -> Iterator[None]:
    """Around the imports of a command that trains or draws: half a million objects, and none of them is garbage.

    Looking for some among them takes a sixth of the time, then and whenever all objects are looked through later.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def world() -> World | None:
    """The world of ranks, if this command has joined one."""
    ranks = sys.modules.get("atoll.engines.ranks")
    return ranks.joined() if ranks else None
