"""Loaders for files that people have: one builder for each format."""

from collections.abc import Callable

from atoll.data.dataset import Dataset
from atoll.data.formats.celeba import celeba
from atoll.data.formats.cifar import cifar10_binary, cifar100
from atoll.data.formats.csv import csv
from atoll.data.formats.emnist import emnist
from atoll.data.formats.femnist import femnist
from atoll.data.formats.frame import fitted_table
from atoll.data.formats.huggingface import huggingface
from atoll.data.formats.idx import idx
from atoll.data.formats.images import images
from atoll.data.formats.leaf import leaf
from atoll.data.formats.leaf_shakespeare import leaf_shakespeare
from atoll.data.formats.libsvm import libsvm
from atoll.data.formats.new_rows import columns_of, read_new_rows
from atoll.data.formats.parquet import parquet
from atoll.data.formats.preprocessing import Preprocessing
from atoll.data.formats.reddit import reddit
from atoll.data.formats.safe_read import at_the_door
from atoll.data.formats.sent140 import sent140
from atoll.data.formats.svhn import svhn
from atoll.data.formats.tff_cifar100 import tff_cifar100
from atoll.data.formats.tff_emnist import tff_emnist
from atoll.data.formats.tff_stackoverflow import tff_stackoverflow

_BUILDERS: dict[str, Callable[..., Dataset]] = {
    "csv": csv,
    "parquet": parquet,
    "images": images,
    "libsvm": libsvm,
    "idx": idx,
    "emnist": emnist,
    "cifar10_binary": cifar10_binary,
    "cifar100": cifar100,
    "svhn": svhn,
    "leaf": leaf,
    "femnist": femnist,
    "celeba": celeba,
    "sent140": sent140,
    "reddit": reddit,
    "leaf_shakespeare": leaf_shakespeare,
    "tff_emnist": tff_emnist,
    "tff_cifar100": tff_cifar100,
    "tff_stackoverflow": tff_stackoverflow,
    "huggingface": huggingface,
}

FILES: dict[str, Callable[..., Dataset]] = {name: at_the_door(name, build) for name, build in _BUILDERS.items()}

__all__ = ["FILES", "Preprocessing", "columns_of", "fitted_table", "read_new_rows"]
