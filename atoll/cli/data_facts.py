"""What `atoll data` says of a data set and of a partition of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from torch import Tensor

from atoll import tree
from atoll.data import Dataset, Partition, label_skew
from atoll.data.sources import RECIPES

_MANY = 50  # classes: too many to name each with its number of rows
_NAMED = 40  # names are listed, then how many more there are
_OUTPUTS = {"classification": "classes", "regression": "targets", "next_token": "tokens"}
Facts = list[tuple[str, str]]


def counts(data: Dataset) -> list[str]:
    """Rows of each part, shapes, natural clients and megabytes."""
    parts = [part for part in (data.train, data.test, data.validation) if part is not None]
    held = " / ".join(f"{len(part['x']):,}" for part in parts)
    owners = ", ".join(f"{len(_sizes_by(key)):,} by {name}" for name, key in data.keys.items())
    owners = owners or ", ".join(data.parties)
    megabytes = sum(tree.nbytes(part) for part in parts) / 1e6
    return [held, "x".join(map(str, data.inputs)), f"{data.outputs:,}", owners, f"{megabytes:.0f}"]


def facts(data: Dataset) -> Facts:
    """Everything about a data set, by name."""
    found = [("kind", data.kind), *_parts(data)]
    found.append(("decoded", f"x {data.inputs}, {data.outputs:,} {_OUTPUTS[data.kind]}"))
    found += [("vocabulary", f"{data.vocabulary:,} tokens")] if data.vocabulary else []
    if data.labels is not None and data.outputs <= _MANY:
        rows = data.labels.bincount(minlength=data.outputs).tolist()
        names = data.classes or tuple(map(str, range(data.outputs)))
        found.append(("classes", ", ".join(f"{n} {c:,}" for n, c in zip(names, rows, strict=True))))
    found += [(f"by {name}", _sizes(_sizes_by(key), "clients") + _named(data, name)) for name, key in data.keys.items()]
    found += [(f"party {name}", f"{len(columns)} columns of x") for name, columns in data.parties.items()]
    found.append(("digest", data.digest()))
    if data.name in RECIPES:
        recipe = RECIPES[data.name]
        found += [("terms", recipe.terms), ("cite", recipe.citation), ("about", recipe.home)]
    return found


def _named(data: Dataset, key: str) -> str:
    names = data.client_names.get(key, ())
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f": {', '.join(names[:_NAMED])}{more}" if names else ""


def skew(data: Dataset, partition: Partition) -> Facts:
    """How unlike the clients of a partition are."""
    found = [("clients", _sizes(partition.sizes, "clients"))]
    if 0 < len(partition.client_names) <= _NAMED:
        sizes = zip(partition.client_names, partition.sizes.tolist(), strict=True)
        found.append(("rows", ", ".join(f"{name} {rows:,}" for name, rows in sizes)))
    if data.labels is not None:
        measures = asdict(label_skew(partition, data.labels))
        found += [(k.replace("_", " "), f"{v:.3f}") for k, v in measures.items()]
    return found


def _parts(data: Dataset) -> Iterator[tuple[str, str]]:
    for part, columns in (("train", data.train), ("test", data.test), ("validation", data.validation)):
        if columns is not None:
            x, size = columns["x"], tree.nbytes(columns) / 1e6
            yield part, f"{len(x):,} rows; x {tuple(x.shape[1:])} {str(x.dtype)[6:]}, {size:.1f} MB"


def _sizes_by(key: Tensor) -> Tensor:
    """The rows of each client that has any."""
    rows = key.bincount()
    return rows[rows > 0]


def _sizes(sizes: Tensor, what: str) -> str:
    ordered = sizes.sort().values
    median = float(ordered.double().quantile(0.5))
    return f"{len(sizes):,} {what}, {int(ordered[0]):,} to {int(ordered[-1]):,} rows, median {median:,.0f}"
