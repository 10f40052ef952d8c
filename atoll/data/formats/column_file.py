"""A file of named columns, read by DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # float64 with NaN, or texts (object) with None, for what is missing
Columns = dict[str, Array]

NUMBER, TEXT = 0, 1


@dataclass(frozen=True)
class ColumnFile:
    """The columns of one file: what SQL reads each, and what it holds."""

    path: Path
    source: str
    cells: dict[str, tuple[str, str]]  # name -> what SQL reads as a number, and as text
    holds: dict[str, str]  # name -> "numbers", "texts", or DuckDB's name of a type that is neither
    base: Any  # the open database

    def read(self, numbers: Sequence[str], texts: Sequence[str]) -> Columns:
        kinds = {**dict.fromkeys(numbers, NUMBER), **dict.fromkeys(texts, TEXT)}
        selected = [f"{self.cells[n][kind]} AS c{i}" for i, (n, kind) in enumerate(kinds.items())]
        arrays = self.base.execute(f"SELECT {', '.join(selected)} FROM {self.source}").fetchnumpy()
        return {n: _plain(arrays[f"c{i}"], kind) for i, (n, kind) in enumerate(kinds.items())}


def absent(values: Array) -> NDArray[np.bool_]:
    if values.dtype.kind == "O":
        return np.fromiter((v is None for v in values), bool, len(values))
    return np.isnan(values)


@contextmanager
def memory_database() -> Iterator[Any]:
    """A database in memory that fetches nothing from anywhere."""
    import duckdb  # here, so that atoll starts without it

    alone: dict[str, Any] = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    with duckdb.connect(config=alone) as base:
        base.execute("SET enable_progress_bar = false")
        yield base


def database_error() -> type[Exception]:
    import duckdb

    error: type[Exception] = duckdb.Error
    return error


def first_line(error: Exception) -> str:
    """What DuckDB says, without its advice on SQL."""
    return str(error).strip().partition("\n")[0]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def pattern(path: Path) -> str:
    """The path as a pattern, in SQL, that fits nothing but itself."""
    return quoted("".join(f"[{c}]" if c in "[*?" else c for c in str(path)))


def _plain(values: Array, kind: int) -> Array:
    if kind == NUMBER:
        return np.ma.filled(values.astype(np.float64), np.nan)
    texts = np.array(np.ma.getdata(values), object)
    texts[np.ma.getmaskarray(values)] = None
    return texts
