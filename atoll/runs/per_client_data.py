"""Data that a Python program hands over client by client: joined, with who held which rows."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor, cat
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from atoll.errors import ConfigError, DataError
from atoll.runs.python_data import is_frame, is_sparse, pair


def joined(data: Any, clients: Any) -> tuple[Any, Any]:
    """Data and clients as they are, or, of one set for each client, all rows and who held which."""
    sets = list(data.values()) if isinstance(data, Mapping) else data
    if not _by_client(sets):
        if clients is None:
            raise ConfigError(
                "clients: is missing. Name a partition, clients={'name': 'iid', 'clients': 10}, give the client of "
                "each row, or hand over data as a list with one pair (x, y) for each client."
            )
        return data, clients
    if clients is not None:
        raise ConfigError(
            "clients: data has one set for each client already. Leave clients out, or join the sets to one pair (x, y)."
        )
    names = list(map(str, data)) if isinstance(data, Mapping) else []
    called = [repr(name) for name in names] or [str(i) for i in range(len(sets))]
    pairs = [pair(held, f"data of client {name}") for name, held in zip(called, sets, strict=True)]
    x, y = (_together([p[i] for p in pairs], called, what) for i, what in enumerate(("x", "y")))
    ends = np.cumsum([0, *(_length(p[1]) for p in pairs)]).tolist()
    rows = [range(begin, end) for begin, end in pairwise(ends)]
    return (x, y), dict(zip(names, rows, strict=True)) if names else rows


def check_test(test: Any) -> None:
    """Test data is one set, which clients and server share."""
    if test is not None and _by_client(list(test.values()) if isinstance(test, Mapping) else test):
        raise ConfigError(
            "test: has one set for each client. Give one pair (x, y); what each client reaches on rows of its own is "
            "measured with evaluate={'holdout': 0.2}."
        )


def _by_client(sets: Any) -> bool:
    return isinstance(sets, list | tuple) and bool(sets) and all(_is_set(held) for held in sets)


def _is_set(held: Any) -> bool:
    """One client's data: a pair that begins with something that has rows, or a torch data set."""
    if isinstance(held, TorchDataset | DataLoader):
        return True
    return isinstance(held, list | tuple) and len(held) == 2 and (_has_rows(held[0]) or isinstance(held[0], Mapping))


def _has_rows(x: Any) -> bool:
    several = (isinstance(x, np.ndarray | Tensor) and x.ndim > 0) or is_sparse(x)
    return several or is_frame(x)


def _length(y: Any) -> int:
    return int(y.shape[0]) if _has_rows(y) else len(y)


def _together(parts: Sequence[Any], called: Sequence[str], what: str) -> Any:
    """One column of all clients' in order."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {k: _together([p[k] for p in parts], called, f"{what}[{k!r}]") for k in _same_keys(parts, called, what)}
    if is_frame(first):
        return sys.modules["pandas"].concat(list(parts), ignore_index=True)
    if not is_sparse(first):
        parts = [p if isinstance(p, Tensor) else np.asarray(p) for p in parts]
    _check_alike(parts, called, what)
    if is_sparse(first) and not isinstance(first, Tensor):
        return sys.modules["scipy.sparse"].vstack(list(parts), format="csr")
    return cat(list(parts)) if isinstance(first, Tensor) else np.concatenate(parts)


def _same_keys(parts: Sequence[Any], called: Sequence[str], what: str) -> list[str]:
    keys = [sorted(map(str, part)) if isinstance(part, Mapping) else type(part).__name__ for part in parts]
    if odd := next((i for i, k in enumerate(keys) if k != keys[0]), None):
        raise DataError(f"data, {what}: client {called[odd]} has {keys[odd]}, client {called[0]} {keys[0]}.")
    return list(parts[0])


def _check_alike(parts: Sequence[Any], called: Sequence[str], what: str) -> None:
    """The same kind of numbers and the same shape in all: promoted or broadcast they would mean something else."""
    kinds = [f"{type(p).__name__} of {p.dtype}, rows of shape {tuple(p.shape[1:])}" for p in parts]
    if odd := next((i for i, k in enumerate(kinds) if k != kinds[0]), None):
        raise DataError(
            f"data, {what}: client {called[odd]} has {kinds[odd]}, client {called[0]} {kinds[0]}. Give all the same."
        )
