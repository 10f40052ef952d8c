"""The binary versions of CIFAR-10 and CIFAR-100: records of labels and 3,072 pixels."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.dataset import Dataset
from atoll.data.decode import Pixels
from atoll.data.formats import safe_read
from atoll.errors import DataError

_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_PIXELS = 3 * 32 * 32
_BATCHES = [f"data_batch_{i}.bin" for i in range(1, 6)]


def cifar10_binary(path: Path) -> Dataset:
    """CIFAR-10 from its binary version (data_batch_1.bin to data_batch_5.bin, test_batch.bin).

    `path` is the folder cifar-10-batches-bin. The Python version is not read: its files are pickles.
    Krizhevsky (2009), Learning multiple layers of features from tiny images.
    """
    folder = _folder(path, "cifar-10-batches-bin", _BATCHES[0], ("data_batch_1", "batches.meta"))
    batches = [safe_read.required_member(folder, [name]) for name in _BATCHES]
    x, labels, sizes = _records(batches, (10,))
    if len(set(sizes)) > 1:
        counts = ", ".join(f"{p.name} {n:,}" for p, n in zip(batches, sizes, strict=True))
        safe_read.refuse(folder, f"the batches differ in length ({counts})", "Fetch them again")
    far, there, _ = _records([safe_read.required_member(folder, ["test_batch.bin"])], (10,))
    parts = {"x": x, "y": labels[:, 0]}, {"x": far, "y": there[:, 0]}
    return Dataset("cifar10", "classification", *parts, (3, 32, 32), 10, Pixels(), classes=_NAMES).check()


def cifar100(path: Path, labels: Literal["fine", "coarse"] = "fine") -> Dataset:
    """CIFAR-100 from its binary version (train.bin, test.bin); "coarse", the superclass, is a natural key.

    `path` is the folder cifar-100-binary. `labels` picks the 100 fine or the 20 coarse classes; the coarse class of
    each training image is also the hierarchy that Pachinko allocation wants.
    The Python version is not read: its files are pickles. Krizhevsky (2009).
    """
    folder = _folder(path, "cifar-100-binary", "train.bin", ("train", "meta"))
    x, both, _ = _records([safe_read.required_member(folder, ["train.bin"])], (20, 100))
    far, there, _ = _records([safe_read.required_member(folder, ["test.bin"])], (20, 100))
    which, classes = (1, 100) if labels == "fine" else (0, 20)
    parts = {"x": x, "y": both[:, which]}, {"x": far, "y": there[:, which]}
    keys = {"coarse": both[:, 0].contiguous()}
    return Dataset("cifar100", "classification", *parts, (3, 32, 32), classes, Pixels(), keys).check()


def _folder(path: Path, inner: str, first: str, pickles: Sequence[str]) -> Path:
    """The folder of the files, given it or the one around it; never one of pickles."""
    folder = safe_read.existing_folder(path)
    folder = folder / inner if (folder / inner).is_dir() else folder
    if safe_read.member(folder, [first]) is None and all((folder / name).is_file() for name in pickles):
        raise DataError(
            f"data.path: {folder} holds the Python version, whose files are pickles: reading one may run anything. "
            f"Fetch the binary version ({inner.replace('-batches-bin', '-binary')}.tar.gz) and set path to {inner}."
        )
    return folder


def _records(paths: Sequence[Path], classes: tuple[int, ...]) -> tuple[Tensor, Tensor, list[int]]:
    """Images (n, 3, 32, 32), labels (n, kinds) and the number of records in each file."""
    marks, images = zip(*[_read(path, classes) for path in paths], strict=True)
    x = torch.from_numpy(np.concatenate(images)).reshape(-1, 3, 32, 32)
    return x, torch.from_numpy(np.concatenate(marks).astype(np.int64)), [len(m) for m in marks]


def _read(path: Path, classes: tuple[int, ...]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    size, kinds = len(classes) + _PIXELS, len(classes)
    content = safe_read.read_all(path)
    if not content or len(content) % size:
        what = f"has {len(content):,} bytes, which are no whole records of {size:,}"
        safe_read.refuse(path, what, "It is cut short or another file: fetch it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    for kind, count in enumerate(classes):
        bad = np.flatnonzero(records[:, kind] >= count)
        if len(bad):
            what = f"record {bad[0]} has the label {records[bad[0], kind]}, outside 0..{count - 1}"
            safe_read.refuse(path, what, "It is damaged or another file: fetch it again")
    return records[:, :kinds], records[:, kinds:]
