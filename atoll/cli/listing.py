"""The commands `atoll list` and `atoll version`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from atoll.cli.common import console
from atoll.cli.remembered import remembered
from atoll.errors import ConfigError

Row = tuple[str, str, list[str]]  # a name, what it means, and its options
_COLUMNS = {"suites": "what it is, and its sizes"}  # of other kinds: meaning and options


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(help="algorithms, transforms, engines, data, partitions, suites... Left out: all kinds."),
    ] = None,
) -> None:
    """Print names, options, defaults and meanings.

    From the same signatures that check a file.
    """
    if kind is None:
        console.print(_kinds())
        return
    console.print(table(kind if kind == "data" or kind.endswith("s") else f"{kind}s"))


def _kinds() -> Table:
    """What there are lists of."""
    grid = Table("kind", "names", title="atoll list KIND", title_justify="left")
    for kind, rows in {**remembered("catalogue")["lists"], "suites": remembered("suites")}.items():
        grid.add_row(kind, ", ".join(name for name, *_ in rows))
    return grid


def version() -> None:
    """Print the version."""
    from atoll import __version__

    console.print(__version__, highlight=False)


def table(kind: str) -> Table:
    """Everything of a kind, to print."""
    rows = _rows(kind)
    grid = Table(title=f"{kind.capitalize()} ({len(rows)})", title_justify="left", show_lines=True)
    grid.add_column("name", style="bold", no_wrap=True)
    grid.add_column(_COLUMNS.get(kind, "meaning and options"), overflow="fold")
    for name, meaning, options in rows:
        cell = Text(meaning)
        for option in options:
            cell.append(f"\n  {option}", style="dim")
        grid.add_row(name, cell)
    return grid


def _rows(kind: str) -> list[Row]:
    if kind == "suites":
        return list(remembered("suites"))
    lists = remembered("catalogue")["lists"]
    if kind not in lists:
        from atoll.schema import did_you_mean

        known = [*lists, "suites"]
        raise ConfigError(f"list: {kind!r} is not known.{did_you_mean(kind, known)} Known: {', '.join(known)}.")
    return list(lists[kind])
