"""TensorFlow Federated's HDF5 files: examples/<client>/<field>, one array of a field for each client."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from atoll.data.arrays import Kind
from atoll.data.dataset import Dataset
from atoll.data.formats import safe_read
from atoll.data.formats.label_encoding import matched, named_clients
from atoll.tree import Tree

Array = NDArray[Any]
_ORIGINAL = "Use the file that TensorFlow Federated fetches"


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
    h5py = safe_read.import_extra("h5py", "hdf5")
    try:
        with h5py.File(path, "r") as file:
            if not isinstance(file.get("examples"), h5py.Group):
                safe_read.refuse(path, f"has no group 'examples'; it has {safe_read.list_names(list(file))}", _ORIGINAL)
            group = file["examples"]
            names = sorted(group)[:clients]
            return _read(path, group, names, fields, per_client)
    except (OSError, RuntimeError, KeyError) as e:
        safe_read.refuse(path, f"is no HDF5 file, or damaged or cut short ({e})", "Fetch it again")


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


def _read(path: Path, group: Any, names: list[str], fields: dict[str, Field], per_client: int | None) -> TffExamples:
    sizes = [_size(group[name], fields, f"{path}, client {name!r}") for name in names]
    sizes = sizes if per_client is None else [min(n, per_client) for n in sizes]
    rows = sum(sizes)
    if not rows:
        safe_read.refuse(path, "has no examples", "Fetch it again")
    held = {k: (rows, *f.becomes) for k, f in fields.items()}
    safe_read.check_memory(sum(int(np.prod(s)) * np.dtype(fields[k].dtype).itemsize for k, s in held.items()), path)
    columns = {k: np.empty(shape, fields[k].dtype) for k, shape in held.items()}
    end = 0
    for name, size in zip(names, sizes, strict=True):
        for k, field in fields.items():
            columns[k][end : end + size] = field.convert(group[name][k][:size], f"{path}, client {name!r}, {k}")
        end += size
    return TffExamples(columns, np.repeat(np.array(names, object), sizes))


def _size(client: Any, fields: dict[str, Field], where: str) -> int:
    """How many examples a client has, by the shapes that the file tells."""
    counts = set()
    for name, field in fields.items():
        if name not in client:
            safe_read.refuse(where, f"has no field {name!r}; it has {safe_read.list_names(list(client))}", _ORIGINAL)
        count, *shape = client[name].shape or (0,)
        if tuple(shape) != field.shape:
            safe_read.refuse(where, f"{name} has rows of shape {tuple(shape)}, not {field.shape}", _ORIGINAL)
        counts.add(int(count))
    if len(counts) > 1:
        safe_read.refuse(
            where, f"its fields have different lengths ({', '.join(map(str, sorted(counts)))})", "Fetch it again"
        )
    return counts.pop()
