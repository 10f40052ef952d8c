"""Federated EMNIST, as TensorFlow Federated has it."""

from pathlib import Path

import numpy as np
import torch

from atoll.data.dataset import Dataset
from atoll.data.decode import Pixels
from atoll.data.formats import safe_read
from atoll.data.formats.pictures import to_bytes
from atoll.data.formats.tff_hdf5 import Array, Field, TffExamples, class_field, read_tff, tff_dataset
from atoll.tree import Tree


def tff_emnist(path: Path, digits: bool = False) -> Dataset:
    """Federated EMNIST of TensorFlow Federated (HDF5): 62 classes of characters; natural clients by "client".

    `path` holds fed_emnist_train.h5 and fed_emnist_test.h5, or with `digits` fed_emnist_digitsonly_train.h5 and
    ..._test.h5 (10 class_field). Pixels are kept as bytes; white is 1. The test column "client" numbers the writers as
    the key does. Needs h5py: pip install 'atoll[hdf5]'. Cohen et al. (2017); Caldas et al. (2018).
    """
    folder, stem = safe_read.existing_folder(path), "fed_emnist_digitsonly" if digits else "fed_emnist"
    count = 10 if digits else 62
    fields = {"pixels": Field((28, 28), (28, 28), np.uint8, _bytes), "label": class_field(count)}
    train, test = (
        read_tff(safe_read.required_member(folder, [f"{stem}_{part}.h5"]), fields) for part in ("train", "test")
    )
    return tff_dataset(stem, "classification", (train, test), _columns, (1, 28, 28), count, Pixels())


def _bytes(values: Array, where: str) -> Array:
    return to_bytes(values, where, "Fetch it again: TFF's files hold bytes divided by 255")


def _columns(part: TffExamples) -> Tree:
    return {"x": torch.from_numpy(part.columns["pixels"])[:, None], "y": torch.from_numpy(part.columns["label"])}
