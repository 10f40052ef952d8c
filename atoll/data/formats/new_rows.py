"""Rows that were not there in training, as columns that the saved preprocessing takes."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from atoll.data.arrays import column
from atoll.data.formats import safe_read
from atoll.data.formats.client_files import Found
from atoll.data.formats.column_file import Array, Columns, memory_database
from atoll.data.formats.csv import CsvReading, csv_table
from atoll.data.formats.parquet import SUFFIXES as PARQUET
from atoll.data.formats.parquet import parquet_table
from atoll.data.formats.preprocessing import Preprocessing
from atoll.data.formats.stacked_files import stacked
from atoll.errors import DataError


def read_new_rows(path: Path, fitted: Preprocessing, options: Mapping[str, Any]) -> Columns:
    """The columns of a CSV or Parquet file; `options` of the training data say how it is read."""
    path = safe_read.existing_file(path)
    known = {field.name for field in fields(CsvReading)}
    reading = CsvReading(**{k: v for k, v in options.items() if k in known and v is not None})
    numbers, texts = [n.name for n in fitted.numbers], [c.name for c in fitted.categories]
    with memory_database() as base:
        parquet = path.name.lower().endswith(PARQUET)
        opened = parquet_table(base, path) if parquet else csv_table(reading, base, path)
        with opened as file:
            table = stacked(Found(path.name, str(path), (path,)), [file], by_file=False, wanted=())
            for name in [*numbers, *texts]:
                table.need(name, "path")
            odd = next((name for name in numbers if table.holds[name] != "numbers"), None)
            if odd is not None:
                safe_read.refuse(path, f"column {odd!r} is no number everywhere; in training it was", "Correct it")
            return table.read(numbers, texts)


def columns_of(x: Any, fitted: Preprocessing, where: str = "x") -> Columns:
    """A table (a dict of columns, or a frame), or an array with the columns of numbers in the order of training."""
    numbers, texts = [n.name for n in fitted.numbers], [c.name for c in fitted.categories]
    names = x.keys() if isinstance(x, Mapping) else getattr(x, "columns", None)  # a frame, of pandas or others
    if names is None:
        return _positional(x, numbers, texts)
    by_text = {str(name): x[name] for name in names}
    missing = [name for name in [*numbers, *texts] if name not in by_text]
    if missing:
        raise DataError(f"{where}: lacks {safe_read.list_names(missing)}. The model was trained with these columns.")
    columns = {name: _numbers(by_text[name], name, where) for name in numbers}
    return columns | {name: as_texts(by_text[name]) for name in texts}


def _numbers(values: Any, name: str, where: str) -> Array:
    try:
        return np.asarray(values, np.float64)
    except (ValueError, TypeError):
        raise DataError(f"{where}: column {name!r} is no number everywhere; in training it was. Correct it.") from None


def _positional(x: Any, numbers: list[str], texts: list[str]) -> Columns:
    values = column(x, "x").double().numpy()
    if texts or values.ndim != 2 or values.shape[1] != len(numbers):
        raise DataError(
            f"x: an array of shape {values.shape} does not name its columns. Give a table, or a file, with "
            f"{safe_read.list_names([*numbers, *texts], 20)}."
        )
    return {name: values[:, i] for i, name in enumerate(numbers)}


def as_texts(values: Any) -> Array:
    """As a file would have them; what is missing is None."""
    return np.array([None if _is_missing(v) else str(v).strip() for v in values], object)


def _is_missing(value: Any) -> bool:
    """None, NaN, NaT; and pandas' NA, which is not even unequal to itself."""
    return value is None or repr(value) == "<NA>" or bool(value != value)
