"""Parquet files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from atoll.data.dataset import Dataset
from atoll.data.formats import safe_read
from atoll.data.formats.client_files import Files
from atoll.data.formats.column_file import ColumnFile, database_error, first_line, pattern
from atoll.data.formats.label_encoding import Kind
from atoll.data.formats.tabular import Missing, Standardise, TablePlan, dataset_from

SUFFIXES = (".parquet", ".pq")
_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "BOOLEAN")
_TEXTS = ("VARCHAR", "ENUM", "UUID")


def parquet(
    path: Files,
    label: str,
    client: str | tuple[str, ...] = (),
    test: Files | None = None,
    features: tuple[str, ...] = (),
    exclude: tuple[str, ...] = (),
    categorical: tuple[str, ...] | Literal["auto"] = "auto",
    categories: Annotated[int, Field(ge=2)] = 100,
    kind: Kind | None = None,
    missing: Missing = "refuse",
    standardise: Standardise = "features",
    test_by: str | None = None,
    test_value: str | int | bool = "test",
    test_share: Annotated[float, Field(ge=0, lt=1)] | None = None,
    seed: int = 0,
) -> Dataset:
    """Your own Parquet files: a `label` column, features, and clients by a `client` column or one in each file.

    The options are those of "csv". Missing values are nulls, and numbers that are NaN.
    """
    clients = (client,) if isinstance(client, str) else client
    test_rows = (test_by, test_value, test_share, seed)
    plan = TablePlan(label, clients, features, exclude, categorical, categories, kind, missing, standardise, *test_rows)
    return dataset_from(parquet_table, SUFFIXES, path, test, plan)


@contextmanager
def parquet_table(base: Any, path: Path) -> Iterator[ColumnFile]:
    source = f"read_parquet({pattern(path)})"
    try:
        described = base.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()
        rows = base.execute(f"SELECT count(*) FROM {source}").fetchone()[0]
    except database_error() as e:
        what = f"cannot be read as Parquet ({first_line(e)})"
        safe_read.refuse(path, what, "Write it again; for CSV use name = 'csv'")
    if not rows:
        safe_read.refuse(path, "has no rows", "Give at least one")
    types = {name: str(kind) for name, kind, *_ in described}
    called = {n: '"' + n.replace('"', '""') + '"' for n in types}
    cells = {n: (f"CAST({c} AS DOUBLE)", f"CAST({c} AS VARCHAR)") for n, c in called.items()}
    yield ColumnFile(path, source, cells, {n: _holds(kind) for n, kind in types.items()}, base)


def _holds(kind: str) -> str:
    if kind.endswith("]"):  # a list of something
        return kind
    if kind.removeprefix("U").startswith(_NUMBERS):
        return "numbers"
    return "texts" if kind.startswith(_TEXTS) else kind
