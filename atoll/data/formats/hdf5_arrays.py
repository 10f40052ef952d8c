"""What HDF5's own library reads, run in a child (`in_child`): it has crashed on crafted files more than once.

Imports nothing of atoll but its errors: a child loads this file alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from atoll.errors import DataError

Array = NDArray[Any]
_ORIGINAL = "Use the file that TensorFlow Federated fetches"


def tff_arrays(
    path: str, fields: dict[str, list[int]], clients: int | None, per_client: int | None, most_bytes: int
) -> Iterator[Array]:
    """The clients' names and how many examples each has; then, client by client, each field as it is in the file.

    `fields`: the shape of the rows of each.
    """
    try:
        with h5py.File(path, "r") as file:
            if not isinstance(file.get("examples"), h5py.Group):
                raise DataError(f"{path}: has no group 'examples'; it has {_listed(file)}. {_ORIGINAL}.")
            group = file["examples"]
            names = sorted(group)[:clients]
            counts = [_size(group[name], fields, f"{path}, client {name!r}") for name in names]
            sizes = counts if per_client is None else [min(n, per_client) for n in counts]
            _check_bytes(path, sum(_bytes(group[k], fields, n) for k, n in zip(names, sizes, strict=True)), most_bytes)
            yield np.array(names, "U")
            yield np.array(sizes, np.int64)
            for name, size in zip(names, sizes, strict=True):
                yield from (group[name][field][:size] for field in fields)
    except (OSError, RuntimeError, KeyError) as e:
        raise DataError(f"{path}: is no HDF5 file, or damaged or cut short ({e}). Fetch it again.") from e


def _size(client: Any, fields: dict[str, list[int]], where: str) -> int:
    """How many examples a client has, by the shapes that the file tells."""
    counts = set()
    for name, rows in fields.items():
        if name not in client:
            raise DataError(f"{where}: has no field {name!r}; it has {_listed(client)}. {_ORIGINAL}.")
        count, *shape = client[name].shape or (0,)
        if shape != rows:
            raise DataError(f"{where}: {name} has rows of shape {tuple(shape)}, not {tuple(rows)}. {_ORIGINAL}.")
        counts.add(int(count))
    if len(counts) > 1:
        lengths = ", ".join(map(str, sorted(counts)))
        raise DataError(f"{where}: its fields have different lengths ({lengths}). Fetch it again.")
    return counts.pop()


def _bytes(client: Any, fields: dict[str, list[int]], size: int) -> int:
    return sum(size * math.prod(rows) * int(client[name].dtype.itemsize) for name, rows in fields.items())


def _check_bytes(path: str, count: int, most: int) -> None:
    """A file of a few bytes can claim any number of rows."""
    if count > most:
        sizes = f"{count / 2**30:,.1f} GiB, and this machine has {most / 2**30:,.1f} GiB"
        raise DataError(f"{path}: would take {sizes}. Use fewer or smaller examples.")


def _listed(names: Any, at_most: int = 8) -> str:
    every = list(names)
    more = f" and {len(every) - at_most:,} more" if len(every) > at_most else ""
    return ", ".join(repr(n) for n in every[:at_most]) + more
