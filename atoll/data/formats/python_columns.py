"""Columns of Python values (images that Pillow opened, texts, numbers, lists of numbers) as a data set."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import tree
from atoll.data.dataset import Dataset
from atoll.data.decode import Pixels, Same
from atoll.data.formats import safe_read
from atoll.data.formats.features import standardised
from atoll.data.formats.label_encoding import Kind, named_clients, targets
from atoll.data.formats.pictures import Size, stack_images
from atoll.data.formats.split import held_out
from atoll.data.formats.tokenise import Words, compact
from atoll.data.sources import Tokens
from atoll.errors import DataError
from atoll.tree import Tree

Array = NDArray[Any]
Columns = Mapping[str, Any]  # name -> a sequence of values
Decode = Callable[[Tree], Tree]


@dataclass(frozen=True)
class Reading:
    """Which columns play which part, and how they are read."""

    label: str = "label"
    image: str | None = None
    text: str | None = None
    features: tuple[str, ...] = ()
    client: tuple[str, ...] = ()
    kind: Kind | None = None
    size: Size | None = None
    grey: bool = False
    length: int = 200
    vocabulary: int = 10_000
    test_share: float = 0.2
    seed: int = 0


def from_columns(name: str, train: Columns, test: Columns | None, reading: Reading) -> Dataset:
    """The data set that these columns are.

    >>> data = from_columns("toy", {"age": [1.0, 3.0], "label": ["no", "yes"]}, None, Reading(test_share=0))
    >>> data.train["x"].tolist(), data.train["y"].tolist()
    ([[-1.0], [1.0]], [0, 1])
    """
    for option, column in [("label", reading.label), *(("client", c) for c in reading.client)]:
        _need(train, column, option)
    parts = [train] if test is None else [train, test]
    labels = [_values(_need(part, reading.label, "label")) for part in parts]
    _check_labels(labels, reading.label)
    first = len(labels[0])
    y = targets(np.concatenate(labels), reading.kind, reading.label)
    given = torch.arange(first), torch.arange(first, len(y.y))
    inside, outside = given if test is not None else held_out(y.groups, reading.test_share, reading.seed)
    x, decode, vocabulary, fitted = _inputs(parts, reading, inside)
    columns = {"x": x, "y": y.column}
    held = None if outside is None else tree.rows(columns, outside)
    keys, names = named_clients({c: _values(train[c])[inside.numpy()] for c in reading.client})
    shape = tuple(decode(tree.rows(columns, slice(0, 1)))["x"].shape[1:])
    dataset = Dataset(name, y.kind, tree.rows(columns, inside), held, shape, y.outputs, decode, keys)
    return replace(dataset, vocabulary=vocabulary, classes=y.classes, client_names=names, fitted=fitted).check()


def _inputs(parts: list[Columns], reading: Reading, inside: Tensor) -> tuple[Tensor, Decode, int | None, str]:
    """x of all rows, its decoder, how many tokens there are if it is text, and what of the training rows is in it."""
    what, names = _chosen(parts[0], reading)
    chosen = [_need(part, name, what) for name in names for part in parts]
    if what == "image":
        return stack_images(_chain(chosen), reading.size, reading.grey), Pixels(), None, ""
    if what == "text":
        words = Words()
        rows = words.rows((str(t).lower().split() for t in _chain(chosen)), reading.length)
        final, size = words.settle(rows[inside.numpy()], reading.vocabulary)
        return compact(final[rows], size), Tokens(targets=False), size, "vocabulary"
    blocks = [np.concatenate([_numbers(part[name], name) for part in parts]) for name in names]
    x = torch.from_numpy(standardised(np.concatenate(blocks, 1), inside.numpy()))
    return x, Same(), None, "means and deviations"


def _chosen(columns: Columns, reading: Reading) -> tuple[Literal["image", "text", "features"], list[str]]:
    """What to learn from: as told, or as the first row shows."""
    stated = [name for name in ("image", "text", "features") if getattr(reading, name)]
    if len(stated) > 1:
        raise DataError(f"data.{stated[1]}: {stated[0]} is given too. Learn from one of image, text and features.")
    if reading.image:
        return "image", [reading.image]
    if reading.text:
        return "text", [reading.text]
    if reading.features:
        return "features", list(reading.features)
    rest = {n: next(iter(columns[n])) for n in columns if n not in (reading.label, *reading.client)}
    images = [n for n, v in rest.items() if hasattr(v, "convert")]
    texts = [n for n, v in rest.items() if isinstance(v, str)]
    numbers = [n for n, v in rest.items() if isinstance(v, int | float | list | np.ndarray | np.number)]
    if len(images) == 1 or (not images and len(texts) == 1):
        return ("image", images) if images else ("text", texts)
    if numbers and not images and not texts:
        return "features", numbers
    raise DataError(
        "data.image, data.text, data.features: say which columns to learn from. "
        f"Images: {safe_read.list_names(images) or 'none'}; texts: {safe_read.list_names(texts) or 'none'}; "
        f"numbers: {safe_read.list_names(numbers) or 'none'}."
    )


def _need(columns: Columns, name: str, option: str) -> Any:
    if name not in columns:
        guess = safe_read.did_you_mean(name, columns)
        raise DataError(
            f"data.{option}: there is no column {name!r}.{guess} There are {safe_read.list_names(list(columns), 20)}."
        )
    return columns[name]


def _values(column: Iterable[Any]) -> Array:
    """Numbers as float64, anything else as texts."""
    values = list(column)
    if absent := sum(v is None for v in values):
        raise DataError(
            f"data.label, data.client: {absent:,} of {len(values):,} values are missing. Take those rows out."
        )
    if all(isinstance(v, int | float | np.number) for v in values):
        return np.array(values, np.float64)
    texts = np.empty(len(values), object)
    texts[:] = [str(v) for v in values]
    return texts


def _check_labels(labels: list[Array], column: str) -> None:
    """Hugging Face writes -1 where a label is kept secret."""
    if len(labels) == 2 and labels[1].dtype.kind == "f" and (labels[1] == -1).any() and not (labels[0] == -1).any():
        raise DataError(
            f"data.test: {int((labels[1] == -1).sum()):,} rows have -1 in {column!r}: their label is not told. "
            "Set test to another split, e.g. 'validation'."
        )


def _numbers(column: Iterable[Any], name: str) -> NDArray[np.float64]:
    try:
        array = np.array(list(column), np.float64)
    except (ValueError, TypeError):
        raise DataError(
            f"data.features: column {name!r} is not numbers, or lists of one length. Leave it out."
        ) from None
    if not np.isfinite(array).all():
        raise DataError(f"data.features: column {name!r} has values that are missing or not finite. Fill them first.")
    return array.reshape(len(array), -1)


def _chain(columns: list[Iterable[Any]]) -> Iterable[Any]:
    for column in columns:
        yield from column
