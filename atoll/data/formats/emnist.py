"""EMNIST, in either of the two formats of its authors."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from atoll.data.dataset import Dataset
from atoll.data.decode import Pixels
from atoll.data.formats import safe_read
from atoll.data.formats.idx import image_label_pair, read_idx
from atoll.data.formats.label_encoding import matched
from atoll.data.formats.mat import Struct, read_mat

Split = Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]
Part = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64] | None]  # images, labels, writers

CLASSES = {"byclass": 62, "bymerge": 47, "balanced": 47, "letters": 26, "digits": 10, "mnist": 10}
_FIRST = {"letters": 1}  # these count from 1


def emnist(path: Path, split: Split = "byclass", writers: Path | None = None) -> Dataset:
    """EMNIST: handwritten characters of 28 x 28 pixels, from its .mat or idx files; natural clients by "writer".

    `path` is emnist-<split>.mat, or a folder that holds it or
    emnist-<split>-{train,test}-{images-idx3,labels-idx1}-ubyte. Only .mat files know the writers; with idx files
    `writers` may name a file with one number for each training image (text, a number on each line, or idx). Where the
    test images have writers too, they are its column "writer", numbered alike. The images are stored transposed in
    both formats and are turned here. Cohen et al. (2017), https://arxiv.org/abs/1702.05373.
    """
    path = path.expanduser()
    mat = path if path.is_file() else safe_read.member(safe_read.existing_folder(path), [f"emnist-{split}.mat"])
    if mat is not None and writers is None:
        train, test = _from_mat(mat, split)
    else:
        train, test = _from_idx(safe_read.existing_folder(path), split, writers)
    return _dataset(f"emnist-{split}", CLASSES[split], train, test)


def _dataset(name: str, classes: int, train: Part, test: Part) -> Dataset:
    inside, outside = ({"x": torch.from_numpy(x)[:, None], "y": torch.from_numpy(y)} for x, y, _ in (train, test))
    keys = {}
    if train[2] is not None:
        keys["writer"], there = matched(train[2], test[2])
        outside |= {} if there is None else {"writer": there}
    return Dataset(name, "classification", inside, outside, (1, 28, 28), classes, Pixels(), keys).check()


def _from_mat(path: Path, split: str) -> tuple[Part, Part]:
    top = _record(read_mat(path, "dataset")["dataset"], path)
    return _part(top, "train", path, split), _part(top, "test", path, split)


def _part(top: Struct, part: str, path: Path, split: str) -> Part:
    inner = _record(_field(top, part, path), path)
    x, y = _column(inner, "images", path), _column(inner, "labels", path).reshape(-1)
    if x.ndim != 2 or x.shape[1] != 784 or x.dtype != np.uint8:
        safe_read.refuse(
            path, f"{part}.images is {x.dtype} of shape {x.shape}", "Use the original file: uint8 (n, 784)"
        )
    writers = _column(inner, "writers", path).reshape(-1) if "writers" in inner else None
    for name, column in (("labels", y), ("writers", writers)):
        if column is not None and (len(column) != len(x) or column.dtype.kind not in "iuf"):
            safe_read.refuse(path, f"{part}.{name} has {len(column):,} numbers for {len(x):,} images", "Fetch it again")
    turned = np.ascontiguousarray(x.reshape(-1, 28, 28).transpose(0, 2, 1))
    return turned, _labels(y, split, path), None if writers is None else writers.astype(np.int64)


def _record(value: Any, path: Path) -> Struct:
    if not isinstance(value, dict):
        safe_read.refuse(path, "does not hold the structs that EMNIST has", "Use the original emnist-*.mat")
    return value


def _field(record: Struct, name: str, path: Path) -> Any:
    """Another struct, or an array of numbers."""
    if record.get(name) is None:
        safe_read.refuse(path, f"has no field {name!r} of numbers", "Use the original emnist-*.mat")
    return record[name]


def _column(record: Struct, name: str, path: Path) -> NDArray[Any]:
    value: NDArray[Any] | Struct = _field(record, name, path)
    if isinstance(value, dict):
        safe_read.refuse(path, f"has a struct in place of the numbers {name!r}", "Use the original emnist-*.mat")
    return value


def _from_idx(folder: Path, split: str, writers: Path | None) -> tuple[Part, Part]:
    inner = folder / "gzip" if (folder / "gzip").is_dir() else folder  # the name in the authors' archive
    parts = []
    for part in ("train", "test"):
        stem = f"emnist-{split}-{part}"
        names = f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte"
        paths = [safe_read.required_member(inner, [name]) for name in names]
        x, y = image_label_pair(paths[0], paths[1], transpose=True)
        if x.shape[1:] != (28, 28) or x.dtype != np.uint8:
            safe_read.refuse(paths[0], f"holds {x.dtype} images of shape {x.shape[1:]}", "EMNIST has uint8 (28, 28)")
        parts.append((x, _labels(y, split, paths[1])))
    ids = None if writers is None else _writers(safe_read.existing_file(writers, "writers"), len(parts[0][0]))
    return (*parts[0], ids), (*parts[1], None)


def _labels(y: NDArray[Any], split: str, path: Path) -> NDArray[np.int64]:
    first, classes = _FIRST.get(split, 0), CLASSES[split]
    bad = (y < first) | (y >= first + classes)
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        safe_read.refuse(
            path,
            f"label {y[row]} in row {row} is outside {first}..{first + classes - 1} of the split {split!r}",
            f"Set split to one of {', '.join(CLASSES)}, whichever these files are",
        )
    return y.astype(np.int64) - first


def _writers(path: Path, images: int) -> NDArray[np.int64]:
    with safe_read.open_unpacked(path) as stream:
        binary = stream.read(2) == b"\0\0"
    ids = read_idx(path) if binary else np.array(list(_numbers(path)), np.int64)
    if ids.shape != (images,) or ids.dtype.kind not in "iu":
        safe_read.refuse(
            path, f"has {len(ids):,} writers for {images:,} training images", "Give one number for each image"
        )
    return ids.astype(np.int64)


def _numbers(path: Path) -> Any:
    for number, line in safe_read.numbered_lines(path):
        try:
            yield int(line)
        except ValueError:
            safe_read.refuse(path, f"line {number} is no whole number ({line[:40]!r})", "Write one writer on each line")
