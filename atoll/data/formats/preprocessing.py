"""What is done to the columns of a file before a model sees them: fitted to the training rows, kept as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.decode import Same
from atoll.data.formats.column_file import Columns
from atoll.data.formats.decoders import OneHot
from atoll.errors import DataError
from atoll.tree import Tree

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Number:
    """A column of numbers: what a missing one becomes (None: it is refused), then what is taken off and divided by."""

    name: str
    fill: float | None = None
    mean: float = 0.0
    deviation: float = 1.0

    def apply(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        filled = values if self.fill is None else np.where(np.isnan(values), self.fill, values)
        bad = np.flatnonzero(~(np.abs(filled) <= _LARGEST))
        if len(bad):
            what = f"column {self.name!r} has {len(bad):,} numbers that are missing or not finite"
            raise DataError(f"{what}, the first in row {bad[0] + 1}. Correct them, or leave their rows out.")
        scaled: NDArray[np.float32] = ((filled - self.mean) / self.deviation).astype(np.float32)
        return scaled


@dataclass(frozen=True)
class Category:
    """A column of texts: its categories in the order of their places; any other becomes none of them."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Preprocessing:
    """All of it, with what the answers mean: the classes' names, or the scale of the target."""

    numbers: tuple[Number, ...]
    categories: tuple[Category, ...]
    label: str
    classes: tuple[str, ...] = ()
    target: Number | None = None  # how the target of a regression was standardised, if it was
    order: tuple[str, ...] = ()  # of the columns in a row; empty: categories behind all numbers

    def rows(self, columns: Columns) -> Tensor:
        """What a model takes, side by side."""
        x: Tensor = self.decode(self.apply(columns))["x"]
        return x[:, self._in_order()] if self.order else x

    def apply(self, columns: Columns) -> Tree:
        """The columns of a data set: numbers, and the places of categories."""
        rows = len(next(iter(columns.values())))
        x = np.empty((rows, len(self.numbers)), np.float32)
        for i, number in enumerate(self.numbers):
            x[:, i] = number.apply(columns[number.name])
        return {"x": torch.from_numpy(x)} | ({"slots": self._slots(columns)} if self.categories else {})

    @property
    def width(self) -> int:
        """Of a decoded row."""
        return len(self.numbers) + self._places

    @property
    def decode(self) -> Same | OneHot:
        return OneHot(self._places) if self.categories else Same()

    def _in_order(self) -> list[int]:
        widths = {n.name: 1 for n in self.numbers} | {c.name: len(c.values) for c in self.categories}
        ends = dict(zip(widths, accumulate(widths.values()), strict=True))
        return [i for name in self.order for i in range(ends[name] - widths[name], ends[name])]

    @property
    def _places(self) -> int:
        return sum(len(c.values) for c in self.categories)

    def _slots(self, columns: Columns) -> Tensor:
        """Each row's categories as places from 1; 0 for one that no training row has, or that is missing."""
        places, before = [], 0
        for category in self.categories:
            place = {value: before + 1 + i for i, value in enumerate(category.values)}
            column = columns[category.name]
            places.append(np.fromiter((place.get(v, 0) for v in column), np.int32, len(column)))
            before += len(category.values)
        small = np.int16 if before < np.iinfo(np.int16).max else np.int32
        return torch.from_numpy(np.stack(places, 1).astype(small))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, table: dict[str, Any]) -> Preprocessing:
        target = table["target"]
        return cls(
            tuple(Number(**n) for n in table["numbers"]),
            tuple(Category(c["name"], tuple(c["values"])) for c in table["categories"]),
            table["label"],
            tuple(table["classes"]),
            None if target is None else Number(**target),
            tuple(table.get("order", ())),  # older runs have none
        )
