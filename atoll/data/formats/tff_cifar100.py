"""CIFAR-100 in the clients that Pachinko allocation made, as TensorFlow Federated has it."""

from pathlib import Path

import numpy as np
import torch

from atoll.data.dataset import Dataset
from atoll.data.decode import Pixels
from atoll.data.formats import safe_read
from atoll.data.formats.tff_hdf5 import Array, Field, TffExamples, class_field, read_tff, tff_dataset
from atoll.tree import Tree


def tff_cifar100(path: Path) -> Dataset:
    """CIFAR-100 of TensorFlow Federated (HDF5), split by Pachinko allocation; natural clients by "client".

    `path` holds fed_cifar100_train.h5 (500 clients) and fed_cifar100_test.h5 (100 others). "coarse", the superclass
    of each training image, is a second key: say partition = { name = "natural", by = "client" }. Needs h5py: pip
    install 'atoll[hdf5]'. Reddi et al. (2021), https://arxiv.org/abs/2003.00295.
    """
    folder = safe_read.existing_folder(path)
    fields = {
        "image": Field((32, 32, 3), (3, 32, 32), np.uint8, _bytes),
        "label": class_field(100),
        "coarse_label": class_field(20),
    }
    train, test = (
        read_tff(safe_read.required_member(folder, [f"fed_cifar100_{part}.h5"]), fields) for part in ("train", "test")
    )
    dataset = tff_dataset("fed_cifar100", "classification", (train, test), _columns, (3, 32, 32), 100, Pixels())
    dataset.keys["coarse"] = torch.from_numpy(train.columns["coarse_label"])
    return dataset


def _bytes(values: Array, where: str) -> Array:
    if values.dtype.kind not in "iu" or values.min(initial=0) < 0 or values.max(initial=0) > 255:
        safe_read.refuse(where, "has pixels that are no bytes", "Fetch it again")
    return values.transpose(0, 3, 1, 2)


def _columns(part: TffExamples) -> Tree:
    return {"x": torch.from_numpy(part.columns["image"]), "y": torch.from_numpy(part.columns["label"])}
