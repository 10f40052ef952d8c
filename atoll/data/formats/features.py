"""Feature columns of a table as the two columns of a data set: standardised numbers, and the places of categories."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.decode import Same
from atoll.data.formats import safe_read
from atoll.data.formats.column_file import Columns
from atoll.data.formats.decoders import OneHot
from atoll.data.formats.label_encoding import numbered
from atoll.errors import DataError
from atoll.tree import Tree

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

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

    def columns(self, path: Path, columns: Columns, train: Tensor) -> tuple[Tree, int, Same | OneHot]:
        """The columns, the width of a decoded row, and its decoder; statistics are those of the training rows."""
        inside = train.numpy()
        rows = len(next(iter(columns.values())))
        x = np.empty((rows, len(self.numbers)), np.float32)
        for i, name in enumerate(self.numbers):
            values = self._filled(name, columns[name], inside)
            _check_finite(path, name, values)
            x[:, i] = standardised(values, inside) if self.standardise else values
        if not self.texts:
            return {"x": torch.from_numpy(x)}, x.shape[1], Same()
        slots, width = self._slots(columns, inside)
        return {"x": torch.from_numpy(x), "slots": slots}, x.shape[1] + width, OneHot(width)

    def fitted(self, columns: Columns, target: bool) -> str:
        """What of all training rows is in each row; `target`: it is standardised too."""
        gaps = self.missing in ("mean", "median") and any(np.isnan(columns[name]).any() for name in self.numbers)
        statistics = ["means and deviations"] if target or (self.standardise and self.numbers) else []
        statistics += [f"{self.missing}s in place of missing values"] if gaps else []
        return ", ".join([*statistics, *(["categories"] if self.texts else [])])

    def _filled(self, name: str, values: Floats, inside: Rows) -> Floats:
        absent = np.isnan(values)
        if not absent.any():
            return values
        present = values[inside][~absent[inside]]
        if not len(present) and self.missing != "zero":
            raise DataError(f"data.missing: no training row has a value in column {name!r}. Leave it out with exclude.")
        fill = 0.0 if self.missing == "zero" else np.mean(present) if self.missing == "mean" else np.median(present)
        return np.where(absent, fill, values)

    def _slots(self, columns: Columns, inside: Rows) -> tuple[Tensor, int]:
        """Each row's categories as places from 1; 0 for one that no training row has, or that is missing."""
        places, width = [], 0
        for name in self.texts:
            column = columns[name]
            categories = numbered(np.array([v for v in column[inside] if v is not None], object))[1]
            self._check_categories(name, column, categories)
            place = {value: width + 1 + i for i, value in enumerate(categories)}
            places.append(np.fromiter((place.get(v, 0) for v in column), np.int32, len(column)))
            width += len(categories)
        small = np.int16 if width < np.iinfo(np.int16).max else np.int32
        return torch.from_numpy(np.stack(places, 1).astype(small)), width

    def _check_categories(self, name: str, column: NDArray[Any], categories: Sequence[str]) -> None:
        odd = [v for v in categories if not is_number(v)]
        if self.auto and 2 * len(odd) < len(categories):
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


def standardised(values: Any, train: Rows) -> Any:
    """With the mean and the standard deviation of the training rows, as float32; a constant becomes 0."""
    mean, std = values[train].mean(0), values[train].std(0)
    scaled = ((values - mean) / np.where(std > 0, std, 1.0)).astype(np.float32)
    return scaled


def _check_finite(path: Path, name: str, values: Floats) -> None:
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
