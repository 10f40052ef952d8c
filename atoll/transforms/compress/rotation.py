"""A random rotation that is drawn from a key: it spreads an update evenly over its coordinates, and keeps lengths.

Signs at random, then Walsh and Hadamard's matrix, in blocks: n numbers take log2(block) additions each. The last block
is padded with zeros to a power of two.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from atoll import rng
from atoll.transforms.compress import fused

_BLOCK = 4096


def block_of(numbers: int) -> int:
    """The coordinates that are rotated together.

    >>> block_of(100), block_of(10**6)
    (128, 4096)
    """
    return min(_BLOCK, 1 << max(0, numbers - 1).bit_length())


def rotated_size(numbers: int) -> int:
    """How many coordinates there are after it.

    >>> rotated_size(100), rotated_size(5000)
    (128, 8192)
    """
    return -(-numbers // block_of(numbers)) * block_of(numbers)


def rotated(x: Tensor, key: Tensor) -> Tensor:
    """A flat tensor, rotated in blocks: (blocks, block)."""
    block, size = block_of(len(x)), rotated_size(len(x))
    if fused.usable(x):
        blocks: Tensor = fused.rotate(x, key, block, size, False).reshape(-1, block)
        return blocks
    padded = torch.nn.functional.pad(x, (0, size - len(x)))
    return _hadamard((padded * _signs(key, size).to(x.dtype)).reshape(-1, block))


def rotated_back(y: Tensor, numbers: int, key: Tensor) -> Tensor:
    """The first so many of what was rotated."""
    if fused.usable(y):
        flat: Tensor = fused.rotate(y.flatten(), key, y.shape[1], numbers, True)
        return flat
    padded = _hadamard(y).flatten()
    return (padded * _signs(key, len(padded)).to(y.dtype))[:numbers]


def _signs(key: Tensor, n: int) -> Tensor:
    return 1.0 - 2.0 * (rng.quick_words(key, n) & 1).float()


def _hadamard(x: Tensor) -> Tensor:
    """Of every row, with rows that keep their lengths: its own inverse."""
    rows, width = x.shape
    half = 1
    while half < width:
        pairs = x.reshape(rows, -1, 2, half)
        a, b = pairs.unbind(2)
        x = torch.stack([a + b, a - b], 2)
        half *= 2
    return x.reshape(rows, width) * (1.0 / math.sqrt(width))
