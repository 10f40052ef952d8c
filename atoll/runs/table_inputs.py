"""Tables with columns of numbers and of categories, as one array; the categories are those of the training rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.errors import DataError


@dataclass(frozen=True)
class TableCategories:
    """The columns of a table in order, and the categories of those that hold text."""

    categories: Mapping[str, tuple[Any, ...] | None]  # None: a column of numbers

    @classmethod
    def of(cls, columns: Mapping[str, NDArray[Any]]) -> TableCategories:
        return cls({name: _categories(x) for name, x in columns.items()})

    def encode(self, columns: Mapping[str, NDArray[Any]], where: str) -> NDArray[np.float32]:
        """Numbers as they are, categories one-hot; one that no training row had is all zeros."""
        if list(columns) != list(self.categories):
            unlike = sorted(set(columns) ^ set(self.categories)) or list(columns)
            raise DataError(f"{where}: its columns are not those of the training data ({', '.join(unlike)}).")
        parts = [_encoded(columns[name], known) for name, known in self.categories.items()]
        return np.concatenate(parts, 1).astype(np.float32)


def _encoded(values: NDArray[Any], known: tuple[Any, ...] | None) -> NDArray[Any]:
    return values[:, None] if known is None else values[:, None] == np.array(known, dtype=object)[None]


def _categories(values: NDArray[Any]) -> tuple[Any, ...] | None:
    return None if values.dtype.kind in "biuf" else tuple(sorted(set(values.tolist()), key=str))
