"""The text format of LibSVM and SVMlight: a label, then index:value for whatever is not zero."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from atoll import tree
from atoll.data.dataset import Dataset
from atoll.data.decode import Same
from atoll.data.formats import safe_read
from atoll.data.formats.decoders import Sparse
from atoll.data.formats.label_encoding import Kind, targets
from atoll.data.formats.split import Share, held_out
from atoll.errors import DataError
from atoll.tree import Tree

_DENSE = 1 << 28  # bytes: up to here rows are held as they are
_FLOAT = float(np.finfo(np.float32).max)
_WIDEST = 1 << 24  # features: a batch is dense, so more cannot be meant


def libsvm(
    path: Path,
    test: Path | None = None,
    features: Annotated[int, Field(ge=1)] | None = None,
    kind: Kind | None = None,
    test_share: Share = 0.2,
    seed: int = 0,
) -> Dataset:
    """LibSVM's sparse text files, packed or not, as a9a, rcv1.binary and covtype.libsvm.

    Indices count from 1. `features` is their number, if the files do not use the last ones. Labels become classes 0,
    1, ... in rising order (-1 and 1 are 0 and 1) unless they have fractions or `kind` says otherwise. Without a
    `test` file `test_share` of the rows (of every class) is held out. Rows are held dense while that takes at most
    256 MiB and no more than sparse; otherwise only what is not zero is held, and a batch is filled in when it is
    used. Chang & Lin (2011), https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/.
    """
    path = safe_read.existing_file(path)
    rows, labels = read_libsvm(path)
    first = len(labels)
    if test is not None:
        far, there = read_libsvm(safe_read.existing_file(test, "test"))
        rows, labels = _stacked(rows, far), np.concatenate([labels, there])
    width = _width(path, rows.shape[1], features)
    y = targets(labels, kind, "label")
    given = torch.arange(first), torch.arange(first, len(labels))
    inside, outside = given if test is not None else held_out(y.groups, test_share, seed)
    columns, decode = _columns(path, rows, width)
    columns["y"] = y.column
    train, held = tree.rows(columns, inside), None if outside is None else tree.rows(columns, outside)
    return Dataset(path.name, y.kind, train, held, (width,), y.outputs, decode, classes=y.classes).check()


def read_libsvm(path: Path) -> tuple[Any, NDArray[np.float64]]:
    """The rows of one file as a scipy CSR matrix (float32) and their labels."""
    from sklearn.datasets import load_svmlight_file  # here, so that atoll starts without it

    try:
        with safe_read.open_unpacked(path) as stream:
            rows, labels = load_svmlight_file(stream, dtype=np.float32, zero_based=False)
    except (ValueError, IndexError, OverflowError, UnicodeDecodeError) as e:
        if isinstance(e, DataError):
            raise
        _blame(path)
        safe_read.refuse(path, f"is no LibSVM file ({e})", "Write: label index:value index:value ..., indices from 1")
    if not len(labels):
        safe_read.refuse(path, "has no rows", "Fetch it again")
    if not (np.isfinite(rows.data).all() and np.isfinite(labels).all()) or rows.shape[1] > _WIDEST:
        _blame(path)
    return rows, labels


def _stacked(rows: Any, far: Any) -> Any:
    from scipy.sparse import vstack

    widest = max(rows.shape[1], far.shape[1])
    for part in (rows, far):
        part.resize((part.shape[0], widest))
    return vstack([rows, far], format="csr")


def _width(path: Path, largest: int, features: int | None) -> int:
    if features is not None and features < largest:
        raise DataError(f"data.features: {features} is less than the largest index in {path.name}, {largest}.")
    return features or largest


def _columns(path: Path, rows: Any, width: int) -> tuple[Tree, Same | Sparse]:
    """The rows as columns: dense, or the values and places of what is not zero."""
    held = np.diff(rows.indptr)
    longest = max(1, int(held.max()))
    place = np.int16 if width < np.iinfo(np.int16).max else np.int32
    sparse = len(held) * longest * (4 + np.dtype(place).itemsize)
    dense = len(held) * width * 4
    if dense <= max(_DENSE, sparse):
        safe_read.check_memory(dense, path)
        return {"x": torch.from_numpy(_dense(rows, width))}, Same()
    safe_read.check_memory(sparse, path)
    values = np.zeros((len(held), longest), np.float32)
    slots = np.zeros((len(held), longest), place)
    row = np.repeat(np.arange(len(held)), held)
    at = np.arange(len(row)) - np.repeat(rows.indptr[:-1], held)
    values[row, at], slots[row, at] = rows.data, rows.indices + 1
    return {"x": torch.from_numpy(values), "slots": torch.from_numpy(slots)}, Sparse(width)


def _dense(rows: Any, width: int) -> NDArray[np.float32]:
    rows.resize((rows.shape[0], width))
    dense: NDArray[np.float32] = rows.toarray()
    return dense


def _blame(path: Path) -> None:
    """Find the line that is wrong, and refuse the file for it."""
    for number, line in safe_read.numbered_lines(path):
        words = line.partition("#")[0].split()
        if words and (what := _mistake(words)):
            safe_read.refuse(path, f"line {number}: {what}", "Write: label index:value index:value ..., indices from 1")


def _mistake(words: list[str]) -> str | None:
    if not _finite(words[0]):
        return f"the label {words[0]!r} is no finite number"
    before = 0
    for word in words[1:]:
        index, mark, value = word.partition(":")
        if index == "qid":
            continue
        if not mark or not index.isdecimal() or not _finite(value):
            return f"{word!r} is no index:value with a finite value"
        if int(index) == 0:
            return "the index 0 is not allowed: they count from 1"
        if int(index) > _WIDEST:
            return f"the index {index} is too large (the largest possible is {_WIDEST:,})"
        if int(index) <= before:
            return f"the index {index} follows {before}: they must rise"
        before = int(index)
    return None


def _finite(word: str) -> bool:
    try:
        return abs(float(word)) <= _FLOAT
    except ValueError:
        return False
