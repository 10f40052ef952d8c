"""The data that a Python program hands over: arrays, sparse matrices, tables with categories, torch's data sets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate
from torch.utils.data import Dataset as TorchDataset

from atoll import rng, tree
from atoll.data import Dataset, Fields, InputKind, Preprocessing, columns_of, fitted_table
from atoll.errors import ConfigError, DataError
from atoll.tree import Tree

_DENSE_BYTES = 4 << 30  # of a sparse matrix written out
_LABELS = ("labels", "label", "y")  # what a dict calls what is to be predicted
_ITEMS = 1024  # of a data set at a time


def make_dataset(
    data: Any,
    test: Any,
    kind: InputKind | None = None,
    module: nn.Module | None = None,
    augment: Callable[[Tree], Tree] | None = None,
) -> Dataset:
    """The data set itself, or one of what was given; whole numbers that go into an embedding are tokens."""
    if isinstance(data, Dataset):
        if test is not None or kind is not None:
            raise ConfigError(
                "data: is a Dataset, which says its test data and its kind itself. Leave test and kind out."
            )
        return data.check() if augment is None else _augmented(data.check(), augment)
    x, y, columns = _inputs(*pair(data, "data"), None, "data x")
    held = None
    if test is not None:
        held = _inputs(*pair(test, "test"), columns, "test x")[:2]
    fields = None
    if isinstance(x, Mapping):
        x, fields = _packed(x, "data x")
        held = None if held is None else (_packed(held[0], "test x", fields)[0], held[1])
        kind = "tokens" if _is_whole(x) else "features"
    if kind is None and module is not None and _embeds(module) and _is_whole(x):
        kind = "tokens"
    dataset = Dataset.from_arrays(x, y, test=held, kind=kind)
    dataset = dataset if fields is None else replace(dataset, decode=fields).check()
    if columns is not None:
        fitted = "categories" if columns.categories else ""
        dataset = replace(dataset, preprocessing=columns.as_json(), fitted=fitted)
    return dataset if augment is None else _augmented(dataset, augment)


def _augmented(dataset: Dataset, augment: Callable[[Tree], Tree]) -> Dataset:
    """With `augment`, once it has been tried on two rows: what is wrong with it is said before anything is trained."""
    rows = dataset.decode(tree.rows(dataset.train, slice(0, 2)))
    try:
        changed = augment({**rows, "key": rng.key(0)})
    except Exception as e:
        found = f"failed on two rows with {type(e).__name__}: {e}"
    else:
        if isinstance(changed, Mapping) and rows.keys() <= changed.keys():
            return replace(dataset, augment=augment)
        found = f"gave {sorted(changed) if isinstance(changed, Mapping) else type(changed).__name__}"
    like = 'lambda batch: {**batch, "x": batch["x"].flip(-1)}'
    raise ConfigError(
        f"augment: must take a batch, a dict of x, y and key, and give it back ({found}). Such as {like}."
    )


def _inputs(x: Any, y: Any, like: Preprocessing | None, where: str) -> tuple[Any, Any, Preprocessing | None]:
    """Inputs and targets as arrays; of a frame also what is done to its columns, which the test data must go by."""
    if not is_frame(x):
        return (_dense(x, where) if is_sparse(x) else x), y, None
    columns = like or fitted_table(x)
    return columns.rows(columns_of(x, columns, where)), y, columns


def _packed(x: Mapping[str, Any], where: str, like: Fields | None = None) -> tuple[Tensor, Fields]:
    """Named inputs side by side in one column, and how they are taken apart again."""
    parts = {
        str(k): v.detach().cpu() if isinstance(v, Tensor) else torch.as_tensor(np.asarray(v)) for k, v in x.items()
    }
    fields = Fields(tuple((name, tuple(part.shape[1:])) for name, part in parts.items()))
    rows = {len(part) for part in parts.values()}
    kinds = {part.is_floating_point() for part in parts.values()}
    if len(rows) != 1 or len(kinds) != 1 or (like is not None and fields != like):
        shapes = ", ".join(f"{name} {part.dtype} {tuple(part.shape)}" for name, part in parts.items())
        raise DataError(
            f"{where}: a dict of inputs must have as many rows in each, all whole numbers or all floats, in the test "
            f"data as in training (got {shapes})."
        )
    return torch.cat([part.reshape(len(part), -1) for part in parts.values()], 1), fields


def _dense(x: Any, where: str) -> Any:
    """A sparse matrix written out, if that is not too much."""
    need = 4 * int(np.prod(x.shape, dtype=np.float64))
    if need > _DENSE_BYTES:
        raise DataError(
            f"{where}: is sparse, and {need / 1e9:.1f} GB when written out ({x.shape[0]:,} x {x.shape[1]:,}). "
            "Keep fewer columns (sklearn's TruncatedSVD, SelectKBest), or fewer rows."
        )
    return x.to_dense() if isinstance(x, Tensor) else x.astype(np.float32).toarray()


def is_frame(x: Any) -> bool:
    pandas = sys.modules.get("pandas")  # who hands over a frame has imported it
    return pandas is not None and isinstance(x, pandas.DataFrame)


def is_sparse(x: Any) -> bool:
    scipy = sys.modules.get("scipy.sparse")
    return x.layout != torch.strided if isinstance(x, Tensor) else scipy is not None and bool(scipy.issparse(x))


def pair(data: Any, where: str) -> tuple[Any, Any]:
    """Inputs and what is to be predicted, of whatever holds the two."""
    if isinstance(data, DataLoader):
        return _materialised(data.dataset, data.collate_fn, where)
    if isinstance(data, TorchDataset):
        return _materialised(data, default_collate, where)
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ConfigError(
            f"{where}: must be a pair of arrays (x, y), the inputs and what is to be predicted, a torch data set or "
            "loader of such pairs, an atoll.data.Dataset, or a list or dict with one of the first two for each client."
        )
    return data[0], data[1]


def _materialised(data: Any, collate: Callable[[Any], Any] | None, where: str) -> tuple[Any, Any]:
    """Every item once, in order, as two columns."""
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return data.tensors[0], data.tensors[1]
    if isinstance(data, IterableDataset):
        raise ConfigError(f"{where}: has no length, so its rows cannot be given to clients. Read it into arrays first.")
    parts = []
    for start in range(0, len(data), _ITEMS):
        items = [data[i] for i in range(start, min(len(data), start + _ITEMS))]
        parts.append(_labelled((collate or default_collate)(items)))
    if not parts or not isinstance(parts[0], list | tuple) or len(parts[0]) != 2:
        found = type(parts[0]).__name__ if parts else "nothing"
        raise ConfigError(
            f"{where}: its items must be pairs (x, y), but a batch of them is {found}. Map them to pairs."
        )
    return _joined([x for x, _ in parts]), _joined([y for _, y in parts])


def _labelled(batch: Any) -> Any:
    """A batch as a pair: of a dict, its labels and the rest."""
    if not isinstance(batch, Mapping):
        return batch
    label = next((name for name in _LABELS if name in batch), None)
    return batch if label is None else ({k: v for k, v in batch.items() if k != label}, batch[label])


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], Mapping):
        return {name: _joined([part[name] for part in parts]) for name in parts[0]}
    return torch.cat([torch.as_tensor(part) for part in parts])


def _is_whole(x: Any) -> bool:
    if isinstance(x, Tensor):
        return not x.is_floating_point()
    try:
        return np.asarray(x).dtype.kind in "iu"
    except ValueError:  # rows of several lengths, which are refused later
        return False


def _embeds(module: nn.Module) -> bool:
    """Is its first layer an embedding?"""
    layers = [m for m in module.modules() if not list(m.children())]
    return bool(layers) and isinstance(layers[0], nn.Embedding | nn.EmbeddingBag)
