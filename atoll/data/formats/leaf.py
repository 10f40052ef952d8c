"""Any data set in LEAF's format whose inputs are numbers."""

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from atoll.data.dataset import Dataset
from atoll.data.decode import Same
from atoll.data.formats.label_encoding import Kind, targets
from atoll.data.formats.leaf_json import Array, LeafExamples, leaf_dataset, leaf_numbers, read_leaf
from atoll.data.formats.split import Share
from atoll.errors import DataError
from atoll.tree import Tree


def leaf(
    path: Path,
    shape: tuple[Annotated[int, Field(ge=1)], ...] = (),
    kind: Kind | None = None,
    test_share: Share = 0.1,
    seed: int = 0,
) -> Dataset:
    """Numbers in LEAF's JSON format (as its synthetic set); natural clients by "user".

    `path` holds train/ and test/, or is one file; without test/ `test_share` of every user's examples is held out.
    `shape` gives each example another shape, e.g. [1, 28, 28]. The test column "user" numbers users as the key does.
    Caldas et al. (2018), https://arxiv.org/abs/1812.01097.
    """

    def convert(x: list[Any], y: list[Any], where: str) -> tuple[Array, Array]:
        rows = leaf_numbers(x, where).astype(np.float32)
        return rows.reshape(len(rows), -1), leaf_numbers(y, where)

    train, test = read_leaf(path, convert, test_share, seed)
    first, width = train.x.shape
    labels = train.y if test is None else np.concatenate([train.y, test.y])
    target = targets(labels.reshape(len(labels), -1)[:, 0], kind, "y")
    y = target.column
    inputs = shape or (width,)
    if math.prod(inputs) != width:
        raise DataError(f"data.shape: {list(inputs)} does not hold the {width} numbers of an example.")

    def columns(part: LeafExamples) -> Tree:
        return {"x": torch.from_numpy(part.x).reshape(-1, *inputs), "y": y[:first] if part is train else y[first:]}

    return leaf_dataset("leaf", target.kind, (train, test), columns, target.outputs, Same())
