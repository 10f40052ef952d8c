"""Natural clients by name."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def named_keys(
    columns: Mapping[str, tuple[Tensor, Sequence[str]]],
) -> tuple[dict[str, Tensor], dict[str, tuple[str, ...]]]:
    """Keys from 0 of the numbers that occur, and what these are called, where a column's names are by number.

    >>> named_keys({"site": (torch.tensor([2, 0, 2]), ["Bern", "Ulm", "Zug"])})
    ({'site': tensor([1, 0, 1])}, {'site': ('Bern', 'Zug')})
    """
    occurring = {key: torch.unique(numbers, return_inverse=True) for key, (numbers, _) in columns.items()}
    names = {key: tuple(columns[key][1][i] for i in there.tolist()) for key, (there, _) in occurring.items()}
    return {key: places for key, (_, places) in occurring.items()}, names
