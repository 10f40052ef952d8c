"""Rows held out for the test, where the files do not say which."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from atoll import rng
from atoll.data.sources import stratified
from atoll.errors import DataError

Share = Annotated[float, Field(ge=0, lt=1, description="held out where the files have no test rows; 0 for none")]


def held_out(groups: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor | None]:
    """The training rows and the test rows, `share` of every group, both in rising order.

    The split follows `seed` alone, not the seed of an experiment.
    """
    if share == 0:
        return torch.arange(len(groups)), None
    train, test = stratified(groups, share, rng.key("file", "split", seed))
    if not len(test) or not len(train):
        part = "no row" if not len(test) else "every row"
        raise DataError(
            f"data.test_share: {share:g} of {len(groups)} rows in {int(groups.max()) + 1} groups (classes or clients) "
            f"holds out {part}. Use another share, 0 for no test set, or give a test file."
        )
    return train, test
