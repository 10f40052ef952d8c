"""What the feature columns of a table need: means, deviations, fills and categories of the training rows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.formats import safe_read
from atoll.data.formats.column_file import Columns
from atoll.data.formats.label_encoding import numbered
from atoll.data.formats.preprocessing import Category, Number
from atoll.errors import DataError

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Features:
    """Which columns are numbers and which are categories, and what is done to them."""

    numbers: Sequence[str]
    texts: Sequence[str]
    auto: bool  # nobody said that the texts are categories
    categories: int
    missing: str
    standardise: bool

    def fit(self, path: str, columns: Columns, train: Tensor) -> tuple[tuple[Number, ...], tuple[Category, ...]]:
        """What is done to each column; statistics are those of the training rows."""
        inside = train.numpy()
        numbers = tuple(self._number(path, name, columns[name], inside) for name in self.numbers)
        return numbers, tuple(self._category(name, columns[name], inside) for name in self.texts)

    def fitted(self, columns: Columns, target: bool) -> str:
        """What of all training rows is in each row; `target`: it is standardised too."""
        gaps = self.missing in ("mean", "median") and any(np.isnan(columns[name]).any() for name in self.numbers)
        statistics = ["means and deviations"] if target or (self.standardise and self.numbers) else []
        statistics += [f"{self.missing}s in place of missing values"] if gaps else []
        return ", ".join([*statistics, *(["categories"] if self.texts else [])])

    def _number(self, path: str, name: str, values: Floats, inside: Rows) -> Number:
        fill = self._fill(name, values[inside])
        filled = values if fill is None else np.where(np.isnan(values), fill, values)
        _check_finite(path, name, filled)
        return fitted_number(name, filled[inside], fill) if self.standardise else Number(name, fill)

    def _fill(self, name: str, values: Floats) -> float | None:
        """What stands for a missing value, where one may be missing."""
        if self.missing in ("refuse", "drop", "zero"):
            return 0.0 if self.missing == "zero" else None
        present = values[~np.isnan(values)]
        if not len(present):
            raise DataError(f"data.missing: no training row has a value in column {name!r}. Leave it out with exclude.")
        return float(np.mean(present) if self.missing == "mean" else np.median(present))

    def _category(self, name: str, column: NDArray[Any], inside: Rows) -> Category:
        categories = numbered(np.array([v for v in column[inside] if v is not None], object))[1]
        self._check_categories(name, column, categories)
        return Category(name, tuple(categories))

    def _check_categories(self, name: str, column: NDArray[Any], categories: Sequence[str]) -> None:
        words = sorted({v for v in column if v is not None})  # of test rows too: one odd cell there makes a column text
        odd = [v for v in words if not is_number(v)]
        if self.auto and words and not odd:
            unread = [v for v in words if not v.lstrip("-").isdecimal()] or words
            raise DataError(
                f"data.features: column {name!r} holds numbers that are not written as `decimal` says "
                f"({safe_read.list_names(unread, 3)}). Leave decimal out where they have a point; categories go into "
                "categorical."
            )
        if self.auto and odd and all(map(_DECIMAL_COMMA.fullmatch, odd)):
            raise DataError(
                f"data.features: column {name!r} holds numbers with a decimal comma ({safe_read.list_names(odd, 3)}). "
                "Set decimal = ',' (then no number has a point); categories go into categorical."
            )
        if self.auto and 2 * len(odd) < len(words):
            strange = set(odd)
            row = next(i for i, v in enumerate(column, 1) if v in strange)
            raise DataError(
                f"data.features: column {name!r} holds numbers but for {safe_read.list_names(odd, 3)}, the first in "
                f"row {row}. If that stands for a missing value, add it to missing_as; if these are categories, add "
                "the column to categorical."
            )
        if len(categories) > self.categories:
            raise DataError(
                f"data.features: column {name!r} has {len(categories):,} categories "
                f"({safe_read.list_names(categories, 3)}), too many for one-hot. "
                f"Leave it out with exclude = ['{name}'], or raise categories (now {self.categories})."
            )


def fitted_number(name: str, values: Floats, fill: float | None = None) -> Number:
    """The mean and the standard deviation of these values; a constant becomes 0."""
    mean, std = float(values.mean(0).item()), float(values.std(0).item())
    return Number(name, fill, mean, std if std > 0 else 1.0)


def standardised(values: Any, train: Rows) -> Any:
    """With the mean and the standard deviation of the training rows, as float32; a constant becomes 0."""
    mean, std = values[train].mean(0), values[train].std(0)
    scaled = ((values - mean) / np.where(std > 0, std, 1.0)).astype(np.float32)
    return scaled


def _check_finite(path: str, name: str, values: Floats) -> None:
    bad = np.flatnonzero(~(np.abs(values) <= _LARGEST))
    if len(bad):
        what = f"column {name!r} has {len(bad):,} numbers that are not finite, the first in row {bad[0] + 1}"
        safe_read.refuse(path, what, "Correct them, or count them as missing with missing_as and missing")


def is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
