"""TensorFlow Federated's HDF5 files: examples/<client>/<field>, one array of a field for each client."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from atoll.data.arrays import Kind
from atoll.data.dataset import Dataset
from atoll.data.formats import safe_read
from atoll.data.formats.in_child import in_child
from atoll.data.formats.label_encoding import matched, named_clients
from atoll.data.memory import machine_memory
from atoll.tree import Tree

Array = NDArray[Any]


@dataclass(frozen=True)
class Field:
    """One field: the shape of its rows in the file, what they become, and how."""

    shape: tuple[int, ...]
    becomes: tuple[int, ...]
    dtype: DTypeLike
    convert: Callable[[Array, str], Array]  # one client's rows, and where they are


@dataclass(frozen=True)
class TffExamples:
    """The examples of many clients, one below the other, and whose each is."""

    columns: dict[str, Array]
    client: Array


def read_tff(
    path: Path, fields: dict[str, Field], clients: int | None = None, per_client: int | None = None
) -> TffExamples:
    """The fields of the first `clients` clients by name, and of each the first `per_client` examples."""
    safe_read.import_extra("h5py", "hdf5")
    from atoll.data.formats.hdf5_arrays import tff_arrays  # needs h5py

    shapes = {name: list(field.shape) for name, field in fields.items()}
    options: dict[str, Any] = {
        "fields": shapes,
        "clients": clients,
        "per_client": per_client,
        "most_bytes": machine_memory(),
    }
    return _stacked(path, in_child(tff_arrays, path, **options), fields)


def tff_dataset(
    name: str,
    kind: Kind,
    parts: tuple[TffExamples, TffExamples],
    columns: Callable[[TffExamples], Tree],
    inputs: tuple[int, ...],
    outputs: int,
    decode: Callable[[Tree], Tree],
    vocabulary: int | None = None,
) -> Dataset:
    """The data set with the natural key "client"; the test column "client" numbers them alike."""
    train, test = (columns(part) for part in parts)
    here, there = matched(parts[0].client, parts[1].client)
    assert there is not None
    names = named_clients({"client": parts[0].client})[1]
    held = (train, {**test, "client": there}, inputs, outputs, decode, {"client": here})
    return Dataset(name, kind, *held, vocabulary=vocabulary, client_names=names).check()


def class_field(count: int) -> Field:
    """Labels 0..count - 1."""

    def convert(values: Array, where: str) -> Array:
        if values.dtype.kind not in "iu" or (len(values) and not 0 <= values.min() <= values.max() < count):
            safe_read.refuse(where, f"has labels that are none of 0..{count - 1}", "Fetch it again")
        return values

    return Field((), (), np.int64, convert)


def _stacked(path: Path, arrays: Iterator[Array], fields: dict[str, Field]) -> TffExamples:
    """All clients' rows, converted: names and sizes come first, then each client's fields."""
    names, sizes = next(arrays).tolist(), next(arrays).tolist()
    rows = sum(sizes)
    if not rows:
        safe_read.refuse(path, "has no examples", "Fetch it again")
    held = {k: (rows, *f.becomes) for k, f in fields.items()}
    safe_read.check_memory(sum(int(np.prod(s)) * np.dtype(fields[k].dtype).itemsize for k, s in held.items()), path)
    columns = {k: np.empty(shape, fields[k].dtype) for k, shape in held.items()}
    end = 0
    for name, size in zip(names, sizes, strict=True):
        for k, field in fields.items():
            columns[k][end : end + size] = field.convert(next(arrays), f"{path}, client {name!r}, {k}")
        end += size
    return TffExamples(columns, np.repeat(np.array(names, object), sizes))
