"""Street View House Numbers, cropped digits."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from atoll import tree
from atoll.data.dataset import Dataset
from atoll.data.decode import Pixels
from atoll.data.formats import safe_read
from atoll.data.formats.mat import read_mat
from atoll.tree import Tree


def svhn(path: Path, extra: bool = False) -> Dataset:
    """SVHN: house numbers of 32 x 32 pixels in 10 classes, from train_32x32.mat and test_32x32.mat.

    `extra` adds the easier images of extra_32x32.mat to the training set. The files call the digit 0 class 10.
    Netzer et al. (2011), Reading digits in natural images with unsupervised feature learning.
    """
    folder = safe_read.existing_folder(path)
    names = ["train_32x32.mat", *(["extra_32x32.mat"] if extra else [])]
    parts = [_read(safe_read.required_member(folder, [name])) for name in names]
    test = _read(safe_read.required_member(folder, ["test_32x32.mat"]))
    return Dataset(
        "svhn", "classification", tree.cat(parts), test, (3, 32, 32), 10, Pixels(), classes=tuple("0123456789")
    ).check()


def _read(path: Path) -> Tree:
    arrays = read_mat(path, "X")
    x, y = (arrays.get(name) for name in ("X", "y"))
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        safe_read.refuse(path, "does not hold the arrays X and y", "Use the original *_32x32.mat")
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8:
        safe_read.refuse(path, f"X is {x.dtype} of shape {x.shape}", "Use the cropped digits: uint8 (32, 32, 3, n)")
    if y.size != x.shape[3]:
        safe_read.refuse(path, f"has {y.size:,} labels for {x.shape[3]:,} images", "Fetch it again")
    digits = y.reshape(-1).astype(np.int64)
    bad = np.flatnonzero((digits < 1) | (digits > 10))
    if len(bad):
        safe_read.refuse(path, f"label {digits[bad[0]]} of image {bad[0]} is outside 1..10", "Fetch it again")
    return {"x": _channels_first(x), "y": torch.from_numpy(digits % 10)}


def _channels_first(x: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1)))
