"""Sorting a few rows against each other, column by column: comparators on whole rows, so that nothing branches.

>>> [(c.low, c.high) for c in network(3)]
[(0, 1), (0, 2), (1, 2)]
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

_CACHE = 1 << 20  # numbers that a block may hold: a core's caches
_LEAST, _MOST = 2048, 16384  # columns of a block


class Comparator(NamedTuple):
    """The smaller of two rows goes to `low`, the larger to `high`; only what is needed later is computed."""

    low: int
    high: int
    keeps_low: bool = True
    keeps_high: bool = True


@lru_cache(maxsize=64)
def network(n: int, first: int = 0, last: int | None = None) -> tuple[Comparator, ...]:
    """Batcher's odd-even merge sort (1968) of n rows, without what the rows first..last of the result do not need."""
    needed = set(range(first, n if last is None else last + 1))
    kept = []
    for low, high in reversed(_odd_even_merge(n)):
        if low in needed or high in needed:
            kept.append(Comparator(low, high, low in needed, high in needed))
            needed |= {low, high}
    return tuple(reversed(kept))


def _odd_even_merge(n: int) -> list[tuple[int, int]]:
    pairs, size = [], 1
    while size < n:
        step = size
        while step >= 1:
            for start in range(step % size, n - step, 2 * step):
                for i in range(start, min(start + step, n - step)):
                    if i // (2 * size) == (i + step) // (2 * size):
                        pairs.append((i, i + step))
            step //= 2
        size *= 2
    return pairs


def columns_of_block(n: int) -> int:
    """So many columns that n rows of them stay in a core's cache."""
    return max(_LEAST, min(_MOST, _CACHE // n))


def sorted_rows(x: Tensor, first: int = 0, last: int | None = None) -> list[Tensor]:
    """(C, B) to its rows in order, of which only first..last are right; x is left alone."""
    rows = list(x.clone(memory_format=torch.contiguous_format))
    spare = torch.empty_like(rows[0])
    for low, high, keeps_low, keeps_high in network(len(rows), first, last):
        a, b = rows[low], rows[high]
        if not keeps_high:
            torch.minimum(a, b, out=a)
        elif not keeps_low:
            torch.maximum(a, b, out=b)
        else:
            torch.minimum(a, b, out=spare)
            torch.maximum(a, b, out=b)
            rows[low], spare = spare, a
    return rows
