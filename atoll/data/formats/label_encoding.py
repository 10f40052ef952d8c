"""Names and labels as numbers."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.formats import safe_read
from atoll.errors import DataError

Array = NDArray[Any]
Kind = Literal["classification", "regression"]

MANY = 100  # different labels: from here on it may well be regression


class Targets(NamedTuple):
    """What is to be learned: the kind, y (float64 (n, 1) in regression), the number of outputs, class names."""

    kind: Kind
    y: Tensor
    outputs: int
    classes: tuple[str, ...]

    @property
    def column(self) -> Tensor:
        return self.y.float() if self.kind == "regression" else self.y

    @property
    def groups(self) -> Tensor:
        """What a split should have the same share of: the classes, if there are any."""
        return self.y if self.kind == "classification" else torch.zeros(len(self.y), dtype=torch.int64)


def numbered(values: Array) -> tuple[NDArray[np.int64], list[Any]]:
    """Each value's place among the different ones in order, and these: numbers by size, texts by the alphabet."""
    if values.dtype.kind != "O":
        distinct, places = np.unique(values, return_inverse=True)
        return places.reshape(-1).astype(np.int64), distinct.tolist()
    names = _ordered(set(values.tolist()))
    place = {name: i for i, name in enumerate(names)}
    return np.fromiter((place[v] for v in values), np.int64, len(values)), names


def matched(train: Array, test: Array | None) -> tuple[Tensor, Tensor | None]:
    """The clients of the training rows, from 0, and those of the test rows: the same number for the same client.

    Clients that only the test has come last.
    """
    train_numbers, names = numbered(train)
    if test is None:
        return torch.from_numpy(train_numbers), None
    test_numbers, others = numbered(test)
    place = {name: i for i, name in enumerate(names)}
    number = np.array([place.setdefault(name, len(place)) for name in others], np.int64)
    return torch.from_numpy(train_numbers), torch.from_numpy(number[test_numbers])


def named_clients(columns: Mapping[str, Array]) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """Natural keys of these columns, from 0, and what their clients are called."""
    coded = {name: numbered(values) for name, values in columns.items()}
    keys = {name: torch.from_numpy(places) for name, (places, _) in coded.items()}
    return keys, {name: tuple(map(_shown, names)) for name, (_, names) in coded.items()}


def kind_of(values: Array, column: str) -> Kind:
    """Classes or numbers? Texts are classes, numbers with a fraction are targets; too many whole ones are refused."""
    fractions = values.dtype.kind == "f" and bool((values != np.rint(values)).any())
    if fractions:
        return "regression"
    different = len(set(values.tolist())) if values.dtype.kind == "O" else len(np.unique(values))
    if different <= MANY:
        return "classification"
    if values.dtype.kind == "O":
        raise DataError(
            f"data.label: column {column!r} has {different:,} different texts. Is it the right column? "
            "If each is a class, set kind = 'classification'."
        )
    raise DataError(
        f"data.label: column {column!r} has {different:,} different values. Is this regression? "
        "Set kind = 'regression'; if each value is a class, set kind = 'classification'."
    )


def targets(values: Array, kind: Kind | None, column: str) -> Targets:
    kind = kind or kind_of(values, column)
    if kind == "regression":
        if values.dtype.kind == "O":
            texts = safe_read.list_names(_ordered(set(values.tolist())), 3)
            raise DataError(
                f"data.label: column {column!r} holds text ({texts}), which cannot be regressed on. "
                "Set kind = 'classification', or name another column."
            )
        return Targets(kind, torch.from_numpy(values.astype(np.float64))[:, None], 1, ())
    places, names = numbered(values)
    if len(names) < 2:
        raise DataError(
            f"data.label: column {column!r} has one value only ({names[0]!r}), so there is nothing to learn. "
            "Name another column."
        )
    return Targets(kind, torch.from_numpy(places), len(names), tuple(_shown(name) for name in names))


def _shown(name: Any) -> str:
    return f"{name:g}" if isinstance(name, float) else str(name)


def _ordered(names: set[str]) -> list[str]:
    """Texts in order; by size if all of them are whole numbers ("10" after "9")."""
    try:
        return sorted(names, key=lambda n: (int(n), n))
    except ValueError:
        return sorted(names)
