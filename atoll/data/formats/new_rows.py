"""Rows that were not there in training, as columns that the saved preprocessing takes."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from atoll.data.arrays import column
from atoll.data.formats import safe_read
from atoll.data.formats.client_files import Found
from atoll.data.formats.column_file import Columns, memory_database
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


def columns_of(x: Any, fitted: Preprocessing) -> Columns:
    """A table (a dict of columns, or a frame), or an array with the columns of numbers in the order of training."""
    numbers, texts = [n.name for n in fitted.numbers], [c.name for c in fitted.categories]
    names = x.keys() if isinstance(x, Mapping) else getattr(x, "columns", None)  # a frame, of pandas or others
    if names is None:
        return _positional(x, numbers, texts)
    missing = [name for name in [*numbers, *texts] if name not in names]
    if missing:
        raise DataError(f"x: lacks {safe_read.list_names(missing)}. The model was trained with these columns.")
    columns = {name: np.asarray(x[name], np.float64) for name in numbers}
    return columns | {name: _texts(x[name]) for name in texts}


def _positional(x: Any, numbers: list[str], texts: list[str]) -> Columns:
    values = column(x, "x").double().numpy()
    if texts or values.ndim != 2 or values.shape[1] != len(numbers):
        raise DataError(
            f"x: an array of shape {values.shape} does not name its columns. Give a table, or a file, with "
            f"{safe_read.list_names([*numbers, *texts], 20)}."
        )
    return {name: values[:, i] for i, name in enumerate(numbers)}


def _texts(values: Any) -> Any:
    """As a file would have them; None and what is not equal to itself (NaN) are missing."""
    return np.array([None if v is None or v != v else str(v).strip() for v in values], object)
