"""Published tables as data: what papers report, in one form, with the source of every figure.

>>> path = {"data": "fmnist", "partition": "dirichlet(0.5)", "algorithm": "fedavg"}
>>> found = published_figure("niid_bench_table3", path)
>>> found.mean, found.std, found.runs, found.table
(0.881, 0.006, 3, '3')
>>> published_table("niid_bench_table3").source.url
'https://arxiv.org/abs/2102.02079'
"""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from math import sqrt
from typing import Any

from atoll.errors import ConfigError

_NUMBERS = ("table", "metric", "mean", "std")  # every other column of a file is an axis


@dataclass(frozen=True)
class Source:
    """Where a table was published."""

    paper: str
    url: str
    code: str
    tables: str
    note: str = ""


@dataclass(frozen=True)
class Published:
    """One published figure, in the units of a record: shares, where the paper prints per cent."""

    mean: float
    std: float | None  # over repetitions; None where the paper has none
    source: Source
    table: str = ""
    runs: int = 1  # repetitions behind it


@dataclass(frozen=True)
class PublishedEntry:
    """A figure and where it stands. An axis that the paper leaves open is not in `at`: it holds for all its values."""

    at: Mapping[str, str]
    metric: str
    figure: Published


@dataclass(frozen=True)
class PublishedTable:
    """All figures of one paper."""

    name: str
    source: Source
    entries: tuple[PublishedEntry, ...]

    def find(self, path: Mapping[str, str], metric: str = "accuracy") -> PublishedEntry | None:
        """The entry at a cell's path, whatever axes the cell has beyond the paper's."""
        fits = [e for e in self.entries if e.metric == metric and e.at.items() <= path.items()]
        return max(fits, key=lambda e: len(e.at), default=None)


def published_tables() -> tuple[str, ...]:
    return tuple(_sources())


@cache
def published_table(name: str) -> PublishedTable:
    if name not in _sources():
        raise ConfigError(
            f"reference: there is no published table {name!r}. There are: {', '.join(published_tables())}."
        )
    about = _sources()[name]
    source = Source(**{key: about[key].strip() for key in ("paper", "url", "code", "tables", "note")})
    lines = (_folder() / f"{name}.csv").read_text("utf-8").splitlines()
    return PublishedTable(name, source, tuple(_entry(row, about, source) for row in csv.DictReader(lines)))


def published_figure(name: str, path: Mapping[str, str], metric: str = "accuracy") -> Published | None:
    """The published figure of a cell, or None.

    >>> published_figure("niid_bench_table3", {"data": "digits", "partition": "iid", "algorithm": "fedavg"})
    """
    found = published_table(name).find(path, metric)
    return found.figure if found else None


def _entry(row: Mapping[str, str], about: Mapping[str, Any], source: Source) -> PublishedEntry:
    unit = 100.0 if row["metric"] in about["per_cent"] else 1.0
    runs = about["runs"].get(row["table"], 1)
    spread = float(row["std"]) * (sqrt(runs) if about.get("spread") == "error" else 1.0) if row["std"] else None
    std = None if spread is None else round(spread / unit, 9)
    figure = Published(round(float(row["mean"]) / unit, 9), std, source, row["table"], runs)
    at = {axis: value for axis, value in row.items() if axis not in _NUMBERS and value}
    return PublishedEntry(at, row["metric"], figure)


@cache
def _sources() -> dict[str, Any]:
    return tomllib.loads((_folder() / "sources.toml").read_text("utf-8"))


def _folder() -> Traversable:
    return resources.files("atoll.records") / "reference"
