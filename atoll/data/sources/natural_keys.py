"""Natural clients by name."""

from collections.abc import Sequence

import torch
from torch import Tensor


def named_key(numbers: Tensor, names: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """A key from 0 of those numbers that occur, and what these are called.

    >>> named_key(torch.tensor([2, 0, 2]), ["Bern", "Ulm", "Zug"])
    (tensor([1, 0, 1]), ('Bern', 'Zug'))
    """
    there, key = torch.unique(numbers, return_inverse=True)
    return key, tuple(names[i] for i in there.tolist())
