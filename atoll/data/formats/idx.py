"""The idx format of MNIST and its kin: a header of sizes, then plain numbers, big end first."""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.data.dataset import Dataset
from atoll.data.formats import safe_read

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def idx(path: Path, prefix: str = "", transpose: bool = False) -> Dataset:
    """Images and labels in idx files, packed or not, as MNIST, Fashion-MNIST, KMNIST and QMNIST have them.

    The folder `path` holds <prefix>train-images-idx3-ubyte and <prefix>train-labels-idx1-ubyte, and for the test set
    the same with t10k (or test) in place of train; without these there is no test set. `transpose` turns images that
    were written column by column. EMNIST has a format of its own: name = "emnist".
    """
    folder = safe_read.existing_folder(path)
    x, y = _pair(folder, (f"{prefix}train",), transpose)
    tests = (f"{prefix}t10k", f"{prefix}test")
    there = safe_read.member(folder, _names(tests, "images")) is not None
    test = _pair(folder, tests, transpose) if there else None
    return Dataset.from_arrays(x, y, test, kind="classification", name=folder.resolve().name)


def read_idx(path: Path) -> NDArray[Any]:
    """The array of one idx file.

    The size that the header claims is checked against what is there; nothing is set aside for a claim.
    """
    with safe_read.open_unpacked(path) as stream:
        head = safe_read.read_exactly(stream, 4, path, "the start of an idx file")
        if head[:2] != b"\0\0" or head[2] not in _TYPES or not head[3]:
            safe_read.refuse(
                path, f"is no idx file: it starts with 0x{head.hex()}", "Use the ...-ubyte files, not others"
            )
        shape = struct.unpack(f">{head[3]}I", safe_read.read_exactly(stream, 4 * head[3], path, "the idx header"))
        dtype = np.dtype(_TYPES[head[2]])
        what = f"an array of shape {shape}, as its header says,"
        body = safe_read.read_exactly(stream, math.prod(shape) * dtype.itemsize, path, what)
        if stream.read(1):
            safe_read.refuse(path, f"goes on behind {what[:-1]}", "Fetch it again")
    return np.frombuffer(body, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def image_label_pair(images: Path, labels: Path, transpose: bool = False) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Images (n, H, W) and their labels (n,), or why they do not belong together."""
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3:
        safe_read.refuse(images, f"holds an array of shape {x.shape}", "Images have three axes: (n, height, width)")
    if y.ndim != 1 or y.dtype.kind not in "iu":
        safe_read.refuse(labels, f"holds {y.dtype} of shape {y.shape}", "Labels are whole numbers with one axis")
    if len(x) != len(y):
        safe_read.refuse(
            labels, f"has {len(y):,} labels for the {len(x):,} images of {images.name}", "Fetch both again"
        )
    return np.ascontiguousarray(x.transpose(0, 2, 1)) if transpose else x, y.astype(np.int64)


def _pair(folder: Path, prefixes: tuple[str, ...], transpose: bool) -> tuple[NDArray[Any], NDArray[np.int64]]:
    paths = [safe_read.required_member(folder, _names(prefixes, what)) for what in ("images", "labels")]
    return image_label_pair(paths[0], paths[1], transpose)


def _names(prefixes: tuple[str, ...], what: str) -> list[str]:
    axes = {"images": 3, "labels": 1}[what]
    return [f"{p}-{what}{mark}idx{axes}-ubyte" for p in prefixes for mark in "-."]
