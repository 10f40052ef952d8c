"""Vectors for secure sums, and the sum that must come out."""

from collections.abc import Iterable

import torch
from torch import Tensor

from atoll import rng
from atoll.tree import Tree


def vectors(ids: Iterable[int], numbers: int, bits: int, seed: int = 0) -> dict[int, Tree]:
    """Uniform residues; the first number of each is the largest there is."""
    mask = (1 << bits) - 1

    def draw(id: int) -> Tensor:
        high, low = (rng.bits(rng.key("vector", seed, id, part), (numbers,)).long() & 0xFFFF_FFFF for part in (0, 1))
        x = (high << 31 ^ low) & mask
        x[:1] = mask
        return x

    return {id: {"vector": draw(id)} for id in ids}


def plain_sum(own: dict[int, Tree], ids: Iterable[int], bits: int) -> Tensor:
    """In Python's integers, which have no end."""
    columns = zip(*(own[id]["vector"].tolist() for id in ids), strict=True)
    return torch.tensor([sum(column) % (1 << bits) for column in columns], dtype=torch.int64)
