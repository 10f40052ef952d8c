"""The `atoll data` command: what there is, getting it, and looking at it."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from atoll.errors import ConfigError, DataError

if TYPE_CHECKING:
    from torch import Tensor

    from atoll.data import Dataset, Partition

app = typer.Typer(help="Real data by name: list it, get it, look at it.", no_args_is_help=True, rich_markup_mode=None)
console = Console()

Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the data set; may be repeated.")
]


@app.command(name="list")
def list_() -> None:
    """Print every data set: name, kind, size, natural clients, whether it is here, where it comes from, terms."""
    from atoll.data.fetch import cache, cached_state
    from atoll.data.sources import RECIPES
    from atoll.experiment.listing import meaning

    grid = Table(title="Data", title_justify="left", show_lines=True)
    grid.add_column("name", style="bold", no_wrap=True)
    grid.add_column("here", no_wrap=True)
    grid.add_column("MB", justify="right", no_wrap=True)
    grid.add_column("what it is, where it comes from, its terms", overflow="fold")
    for name, builder in _builders().items():
        cell, recipe = Text(meaning(builder)), RECIPES.get(name)
        if recipe is None:
            grid.add_row(name, "your files" if _asks(builder) else "always", "", cell)
            continue
        clients = f"natural clients: {recipe.clients}" if recipe.clients else "no natural clients"
        origin = " + ".join(dict.fromkeys(recipe.packages))
        cell.append(f"\n  {recipe.kind}; {clients}\n  {origin}\n  {recipe.terms}", style="dim")
        grid.add_row(name, cached_state(recipe) or "no", f"{recipe.megabytes:.0f}", cell)
    console.print(grid)
    console.print(f"Cache: {cache()} (ATOLL_DATA names another)", markup=False, highlight=False, soft_wrap=True)


@app.command()
def get(names: Annotated[list[str], typer.Argument(help="Names of data sets; `atoll data list` prints them.")]) -> None:
    """Fetch data sets, verify and keep them; end with a table of what they hold."""
    from atoll.data.sources import RECIPES

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
    failed = []
    for name in dict.fromkeys(names):
        start = time.perf_counter()
        try:
            data = builders[name]()
        except DataError as e:
            failed.append(str(e))
            continue
        grid.add_row(name, *_counts(data), f"{time.perf_counter() - start:.1f}")
        if name in RECIPES:
            words = f"{name}: {RECIPES[name].terms}. Cite: {RECIPES[name].citation}"
            console.print(words, markup=False, highlight=False)
    if grid.row_count:
        console.print(grid)
    if failed:
        raise DataError("\n".join(failed))


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A data set.")],
    set_: Settings = None,
    partition: Annotated[str | None, typer.Option(help="Clients by this partition, such as dirichlet.")] = None,
    clients: Annotated[int | None, typer.Option(help="Its number of clients.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Its alpha.")] = None,
    by: Annotated[str | None, typer.Option(help="Its natural key.")] = None,
    with_: Annotated[
        list[str] | None, typer.Option("--with", metavar="KEY=VALUE", help="Another option of it; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the partition.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write pictures of the partition: a .html or .png file.")] = None,
) -> None:
    """Shapes, classes and natural clients of a data set; sizes and skew of a partition of it."""
    from atoll.experiment.files import override
    from atoll.experiment.registry import build

    entry = override({"data": {"name": name}}, [f"data.{option}" for option in set_ or []])["data"]
    data = build(_builders(), entry, where="data").check()
    _print(name, _facts(data))
    given = {k: v for k, v in (("clients", clients), ("alpha", alpha), ("by", by)) if v is not None}
    if partition is None and (given or with_):
        raise ConfigError("--partition: is missing. Example: --partition dirichlet --clients 20 --alpha 0.3")
    if partition is None and out is None:
        return
    made, words = _partitioned(data, partition, given, with_ or [], seed)
    facts = _skew(data, made)
    _print(words, facts)
    if out is not None:
        for path in _draw(data, made, f"{name}, {words}", facts, out):
            console.print(f"Picture: {path}", markup=False, highlight=False, soft_wrap=True)


def _builders() -> dict[str, Callable[..., Any]]:
    from atoll.data import DATA
    from atoll.data.sources import PACKAGED

    return {**DATA, **PACKAGED}


def _asks(builder: Callable[..., Any]) -> bool:
    """Does it need to be told something, such as a path?"""
    return any(p.default is p.empty for p in inspect.signature(builder).parameters.values())


def _unknown(name: str, known: dict[str, Callable[..., Any]]) -> str:
    from atoll.experiment.messages import near

    meant = near(name, known)
    guess = f" Did you mean {meant!r}?" if meant else ""
    return f"data: {name!r} is not known.{guess} `atoll data list` prints the names."


def _counts(data: Dataset) -> list[str]:
    from atoll import tree

    parts = [part for part in (data.train, data.test, data.validation) if part is not None]
    held = " / ".join(f"{len(part['x']):,}" for part in parts)
    owners = ", ".join(f"{len(_sizes_by(key)):,} by {name}" for name, key in data.keys.items())
    owners = owners or ", ".join(data.parties)
    megabytes = sum(tree.nbytes(part) for part in parts) / 1e6
    return [held, "x".join(map(str, data.inputs)), f"{data.outputs:,}", owners, f"{megabytes:.0f}"]


def _facts(data: Dataset) -> list[tuple[str, str]]:
    from atoll import tree
    from atoll.data.sources import RECIPES

    facts: list[tuple[str, str]] = [("kind", data.kind)]
    for part, columns in (("train", data.train), ("test", data.test), ("validation", data.validation)):
        if columns is not None:
            x, size = columns["x"], tree.nbytes(columns) / 1e6
            facts.append((part, f"{len(x):,} rows; x {tuple(x.shape[1:])} {str(x.dtype)[6:]}, {size:.1f} MB"))
    facts.append(("decoded", f"x {data.inputs}, {data.outputs:,} {_outputs(data)}"))
    facts += [("vocabulary", f"{data.vocabulary:,} tokens")] if data.vocabulary else []
    if data.labels is not None and data.outputs <= 50:
        counts = data.labels.bincount(minlength=data.outputs).tolist()
        names = data.classes or tuple(map(str, range(data.outputs)))
        facts.append(("classes", ", ".join(f"{n} {c:,}" for n, c in zip(names, counts, strict=True))))
    facts += [(f"by {name}", _sizes(_sizes_by(key), "clients")) for name, key in data.keys.items()]
    facts += [(f"party {name}", f"{len(columns)} columns of x") for name, columns in data.parties.items()]
    facts.append(("digest", data.digest()))
    if data.name in RECIPES:
        recipe = RECIPES[data.name]
        facts += [("terms", recipe.terms), ("cite", recipe.citation), ("about", recipe.home)]
    return facts


def _outputs(data: Dataset) -> str:
    return {"classification": "classes", "regression": "targets", "next_token": "tokens"}[data.kind]


def _sizes_by(key: Tensor) -> Tensor:
    """The rows of each client that has any."""
    counts = key.bincount()
    return counts[counts > 0]


def _sizes(sizes: Tensor, what: str) -> str:
    ordered = sizes.sort().values
    median = float(ordered.double().quantile(0.5))
    return f"{len(sizes):,} {what}, {int(ordered[0]):,} to {int(ordered[-1]):,} rows, median {median:,.0f}"


def _partitioned(
    data: Dataset, name: str | None, given: dict[str, Any], more: list[str], seed: int
) -> tuple[Partition, str]:
    from atoll import rng
    from atoll.data import PARTITIONS
    from atoll.experiment.defaults import usual_partition
    from atoll.experiment.files import override
    from atoll.experiment.registry import build

    entry = usual_partition(data.name, data.keys) if name is None else {"name": name, **given}
    entry = override({"partition": entry}, [f"partition.{option}" for option in more])["partition"]
    partitioner = build(PARTITIONS, entry, where="partition")
    made = partitioner(data.labels, data.keys, data.examples, rng.key(seed, "partition"))
    words = ", ".join(str(v) if k == "name" else f"{k} = {v}" for k, v in entry.items())
    return made, words


def _skew(data: Dataset, made: Partition) -> list[tuple[str, str]]:
    from atoll.data import label_skew

    facts = [("clients", _sizes(made.sizes, "clients"))]
    if data.labels is not None:
        facts += [(k.replace("_", " "), f"{v:.3f}") for k, v in asdict(label_skew(made, data.labels)).items()]
    return facts


def _draw(data: Dataset, made: Partition, title: str, facts: list[tuple[str, str]], out: Path) -> list[Path]:
    from atoll.data.measures import label_counts
    from atoll.report import pictures

    if out.suffix not in (".html", ".png"):
        raise ConfigError(f"--out: {out.name!r} must end in .html or .png.")
    plots = [pictures.sizes(made.sizes.numpy())]
    if data.labels is not None:
        plots.insert(0, pictures.bubbles(label_counts(made, data.labels).numpy(), data.classes))
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".html":
        out.write_text(pictures.page(title, plots, facts), encoding="utf-8")
        return [out]
    paths = [out.with_name(f"{out.stem}-{plot.name}.png") for plot in plots]
    for plot, path in zip(plots, paths, strict=True):
        path.write_bytes(plot.picture("png"))
    return paths


def _print(title: str, facts: list[tuple[str, str]]) -> None:
    grid = Table(title=title, title_justify="left", show_header=False)
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(name, value)
    console.print(grid)
