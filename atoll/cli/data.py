"""The `atoll data` command: what there is, getting it, and looking at it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from atoll.cli.common import (
    Alpha,
    By,
    Clients,
    PartitionName,
    PartitionOptions,
    console,
    imports,
    partition_entry,
    print_facts,
    say,
    with_options,
)
from atoll.cli.remembered import parse
from atoll.errors import ConfigError, DataError

if TYPE_CHECKING:
    from atoll.data import Dataset, Partition
    from atoll.experiment import Experiment

app = typer.Typer(help="Real data by name: list it, get it, look at it.", no_args_is_help=True, rich_markup_mode=None)


@app.command(name="list")
def list_() -> None:
    """Print every data set, and whether it is here.

    Name, kind, size, natural clients, where it comes from, terms.
    """
    with imports():
        from atoll.data.fetch import cache, cached_state
        from atoll.data.sources import RECIPES
        from atoll.experiment import summary_line

    grid = Table(title="Data", title_justify="left", show_lines=True)
    grid.add_column("name", style="bold", no_wrap=True)
    grid.add_column("here", no_wrap=True)
    grid.add_column("MB", justify="right", no_wrap=True)
    grid.add_column("what it is, where it comes from, its terms", overflow="fold")
    for name, builder in _builders().items():
        cell, recipe = Text(summary_line(builder)), RECIPES.get(name)
        if recipe is None:
            grid.add_row(name, "your files" if _asks(builder) else "always", "", cell)
            continue
        clients = f"natural clients: {recipe.clients}" if recipe.clients else "no natural clients"
        origin = " + ".join(dict.fromkeys(recipe.packages))
        cell.append(f"\n  {recipe.kind}; {clients}\n  {origin}\n  {recipe.terms}", style="dim")
        grid.add_row(name, cached_state(recipe) or "no", f"{recipe.megabytes:.0f}", cell)
    console.print(grid)
    say(f"Cache: {cache()} (ATOLL_DATA names another)")


@app.command()
def get(names: Annotated[list[str], typer.Argument(help="Names of data sets; `atoll data list` prints them.")]) -> None:
    """Fetch data sets, verify and keep them.

    Ends with a table of what they hold.
    """
    builders = _builders()
    wrong = [_unknown(name, builders) for name in names if name not in builders]
    wrong += [
        f"data: {n!r} reads files of yours: nothing to get." for n in names if n in builders and _asks(builders[n])
    ]
    if wrong:
        raise ConfigError(wrong)
    grid = Table(title="Here now", title_justify="left")
    for head in ("name", "train / test / validation", "x", "out", "natural clients", "MB", "s"):
        grid.add_column(head, justify="right" if head in ("out", "MB", "s") else "left", overflow="fold")
    failed = [_fetch(name, builders[name], grid) for name in dict.fromkeys(names)]
    if grid.row_count:
        console.print(grid)
    if any(failed):
        raise DataError("\n".join(why for why in failed if why))


def _fetch(name: str, builder: Callable[..., Dataset], grid: Table) -> str | None:
    """One data set, as a row; why not, if it cannot be had."""
    from atoll.cli.data_facts import counts
    from atoll.data.sources import RECIPES

    start = time.perf_counter()
    try:
        data = builder()
    except DataError as e:
        return str(e)
    grid.add_row(name, *counts(data), f"{time.perf_counter() - start:.1f}")
    if name in RECIPES:
        say(f"{name}: {RECIPES[name].terms}. Cite: {RECIPES[name].citation}", wrap=True)
    return None


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A data set, or an experiment in TOML.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the data set, or a key of the file."),
    ] = None,
    partition: PartitionName = None,
    clients: Clients = None,
    alpha: Alpha = None,
    by: By = None,
    with_: PartitionOptions = None,
    seed: Annotated[int | None, typer.Option(help="Of the partition; default: 0, or the file's.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write pictures of the partition: a .html or .png file.")] = None,
) -> None:
    """Shapes, classes and clients of a data set or of an experiment.

    Sizes and skew of a partition of it, where one is named; an experiment's file names its own.
    """
    experiment = load_file(name, set_ or [])
    with imports():
        from atoll.cli.data_facts import facts, skew
        from atoll.experiment import build

    given = with_options("data", {"name": name}, set_ or []) if experiment is None else experiment.data
    data = build(_builders(), given, where="data").check()
    print_facts(name, facts(data))
    for note in data.notes:
        say(f"Note: {note}", wrap=True)
    entry = partition_entry(partition, {"clients": clients, "alpha": alpha, "by": by}, with_ or [])
    if experiment is not None:
        entry, seed = entry or experiment.partition, experiment.seed if seed is None else seed
    if entry is None and out is None and experiment is None:
        return
    made, words = _partitioned(data, entry, seed or 0)
    measured = skew(data, made)
    print_facts(words, measured)
    if out is not None:
        for path in _draw(data, made, f"{name}, {words}", measured, out):
            say(f"Picture: {path}")


def load_file(name: str, overrides: list[str]) -> Experiment | None:
    """The experiment of a file, a sweep's without its axes; None for the name of a data set."""
    if not name.endswith(".toml"):
        return None
    from atoll.schema import override, read

    return parse({k: v for k, v in override(read(name), overrides).items() if k != "sweep"})


def _builders() -> dict[str, Callable[..., Any]]:
    with imports():
        from atoll.data import DATA
        from atoll.data.sources import PACKAGED

    return {**DATA, **PACKAGED}


def _asks(builder: Callable[..., Any]) -> bool:
    """Does it need to be told something, such as a path?"""
    return any(p.default is p.empty for p in inspect.signature(builder).parameters.values())


def _unknown(name: str, known: dict[str, Callable[..., Any]]) -> str:
    from atoll.experiment import did_you_mean

    guess = did_you_mean(name, known)
    return f"data: {name!r} is not known.{guess} `atoll data list` prints the names."


def _partitioned(data: Dataset, entry: dict[str, Any] | None, seed: int) -> tuple[Partition, str]:
    """The clients, by the usual partition of the data unless another is named; and which one that is."""
    from atoll import rng
    from atoll.data import PARTITIONS, make_clients
    from atoll.experiment import build, usual_partition

    entry = entry or usual_partition(data.name, data.keys)
    partitioner = build(PARTITIONS, entry, where="partition")
    made = make_clients(data, partitioner, rng.key(seed, "partition"))
    return made, ", ".join(str(v) if k == "name" else f"{k} = {v}" for k, v in entry.items())


def _draw(data: Dataset, made: Partition, title: str, facts: list[tuple[str, str]], out: Path) -> list[Path]:
    from atoll.data.measures import label_counts
    from atoll.report import pictures

    if out.suffix not in (".html", ".png"):
        raise ConfigError(f"--out: {out.name!r} must end in .html or .png.")
    plots = [pictures.sizes(made.sizes.numpy())]
    if data.labels is not None:
        plots.insert(0, pictures.bubbles(label_counts(made, data.labels).numpy(), data.classes, made.client_names))
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".html":
        out.write_text(pictures.page(title, plots, facts), encoding="utf-8")
        return [out]
    paths = [out.with_name(f"{out.stem}-{plot.name}.png") for plot in plots]
    for plot, path in zip(plots, paths, strict=True):
        path.write_bytes(plot.picture("png"))
    return paths
