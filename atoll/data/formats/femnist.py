"""FEMNIST, as LEAF writes it."""

from pathlib import Path
from typing import Any

import torch

from atoll.data.dataset import Dataset
from atoll.data.decode import Pixels
from atoll.data.formats import safe_read
from atoll.data.formats.leaf_json import Array, LeafExamples, leaf_classes, leaf_dataset, leaf_numbers, read_leaf
from atoll.data.formats.pictures import to_bytes
from atoll.data.formats.split import Share
from atoll.tree import Tree


def femnist(path: Path, test_share: Share = 0.1, seed: int = 0) -> Dataset:
    """FEMNIST in LEAF's JSON: characters of 28 x 28 pixels in 62 classes; natural clients by "user", the writer.

    `path` holds train/ and test/ with LEAF's files, or is one file; without test/ `test_share` of every user's images
    is held out. Pixels are kept as bytes, which is what LEAF divided by 255; white is 1. Caldas et al. (2018),
    https://arxiv.org/abs/1812.01097.
    """
    parts = read_leaf(path, _convert, test_share, seed)
    return leaf_dataset("femnist", "classification", parts, _columns, 62, Pixels())


def _columns(part: LeafExamples) -> Tree:
    return {"x": torch.from_numpy(part.x), "y": torch.from_numpy(part.y)}


def _convert(x: list[Any], y: list[Any], where: str) -> tuple[Array, Array]:
    pixels = leaf_numbers(x, where)
    if pixels.shape[1:] != (784,):
        safe_read.refuse(where, f"an image has shape {pixels.shape[1:]}", "FEMNIST has 784 numbers for each")
    images = to_bytes(pixels, where, "For images that were scaled otherwise use name = 'leaf', shape = [1, 28, 28]")
    return images.reshape(-1, 1, 28, 28), leaf_classes(y, 62, where)
