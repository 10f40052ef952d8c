"""The commands `atoll list` and `atoll version`.

What there is stands in signatures, and to read those all that they name must be imported, torch first of all. So it is
read once and kept in the user's cache folder, until a file of the package changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from atoll.cli.common import console, imports

Row = tuple[str, str, list[str]]  # a name, what it means, and its options
_COLUMNS = {"suites": "what it is, and its sizes"}  # of other kinds: meaning and options


def list_(
    kind: Annotated[str, typer.Argument(help="algorithms, transforms, engines, data, partitions, models, suites...")],
) -> None:
    """Print names, options, defaults and meanings.

    From the same signatures that check a file.
    """
    console.print(table(kind if kind == "data" or kind.endswith("s") else f"{kind}s"))


def version() -> None:
    """Print the version."""
    from atoll import __version__

    console.print(__version__, highlight=False)


def table(kind: str) -> Table:
    """Everything of a kind, to print."""
    rows = _remembered(kind)
    grid = Table(title=f"{kind.capitalize()} ({len(rows)})", title_justify="left", show_lines=True)
    grid.add_column("name", style="bold", no_wrap=True)
    grid.add_column(_COLUMNS.get(kind, "meaning and options"), overflow="fold")
    for name, meaning, options in rows:
        cell = Text(meaning)
        for option in options:
            cell.append(f"\n  {option}", style="dim")
        grid.add_row(name, cell)
    return grid


def _remembered(kind: str) -> list[Row]:
    path, state = _cache(), _package_state()
    kept = _kept(path, state)
    if kind not in kept:
        kept[kind] = _read(kind)
        _keep(path, {"state": state, "kinds": kept})
    return kept[kind]


def _read(kind: str) -> list[Row]:
    with imports():
        from atoll.experiment import describe

    if kind != "suites":
        return [(item.name, item.meaning, [str(option) for option in item.options]) for item in describe(kind)]
    from atoll.suites import describe_suites

    return describe_suites()


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atoll" / "list.json"


def _package_state() -> str:
    """Another one as soon as a file of the package is another one."""
    package = Path(__file__).parents[1]
    files = [path for path in package.rglob("*") if path.suffix in (".py", ".toml")]
    seen = sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)
    return hashlib.sha256(repr((sys.version, seen)).encode()).hexdigest()


def _kept(path: Path, state: str) -> dict[str, list[Row]]:
    try:
        content = json.loads(path.read_text())
        return dict(content["kinds"]) if content["state"] == state else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _keep(path: Path, content: dict[str, Any]) -> None:
    """If it can be: where a home cannot be written, it is read from signatures again."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(content))
        draft.replace(path)
