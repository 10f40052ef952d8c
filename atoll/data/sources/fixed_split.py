"""Training, test and validation rows, drawn once and for all where a source has no split of its own."""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import rng, tree
from atoll.data.fetch import ParsedColumns
from atoll.rng import host
from atoll.tree import Tree

Split = Literal["own", "oarf"]

TRAIN, TEST, VALIDATION = 0, 1, 2


def assign_split(strata: NDArray[Any], split: Split, name: str, share: float = 0.2) -> NDArray[np.uint8]:
    """Which part each row is in: TRAIN, TEST or VALIDATION, in the same shares in every stratum.

    "own": `share` of the rows are the test part. "oarf": 83.33 / 8.33 / 8.33 % (Hu et al., OARF, 2022).
    The draw is addressed by the data set's name: it does not follow the seed of an experiment.
    """
    test, validation = (share, 0.0) if split == "own" else (1 / 12, 1 / 12)
    _, strata = np.unique(strata, return_inverse=True)
    sizes = np.bincount(strata)
    order = np.argsort(strata, kind="stable")
    place = host.order(rng.key(name, "split", split)[None], np.arange(len(sizes)), sizes)[0]
    held = np.repeat(np.rint(test * sizes), sizes)
    more = held + np.repeat(np.rint(validation * sizes), sizes)
    part = np.empty(len(strata), np.uint8)
    part[order] = np.where(place < held, TEST, np.where(place < more, VALIDATION, TRAIN))
    return part


def published_split(cached: ParsedColumns) -> tuple[Tree, Tree]:
    """The training and the test part as the source has them."""
    train, test = ({"x": cached[f"{part}_x"], "y": cached[f"{part}_y"].long()} for part in ("train", "test"))
    return train, test


def split_columns(columns: Tree, part: NDArray[Any]) -> tuple[Tree, Tree, Tree | None]:
    """The columns of the training, test and validation rows; None where there is no validation part."""
    parts = [tree.rows(columns, rows_of(part, which)) for which in (TRAIN, TEST, VALIDATION)]
    return parts[0], parts[1], parts[2] if bool((part == VALIDATION).any()) else None


def rows_of(part: NDArray[Any], which: int) -> Tensor:
    """The numbers of the rows in one part, rising."""
    return torch.from_numpy(np.flatnonzero(part == which))
