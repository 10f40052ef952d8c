"""Lagrange coding: pieces of a vector are values of a polynomial, and coded shares are its values elsewhere.

U pieces stand at the points 1 to U, holder j's share at U + 1 + j. Any U shares give all pieces back; where T of the
pieces are uniform, T shares say nothing of the others (Yu et al., Lagrange coded computing, 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from atoll.protocols.mersenne import Elements, MersenneField


@lru_cache(maxsize=8)
def encoding_matrix(field: MersenneField, pieces: int, holders: int) -> Elements:
    """(holders, pieces): shares = matrix @ pieces."""
    points = np.arange(1, pieces + 1)
    return _basis(field, points, pieces + 1 + np.arange(holders))


def decoding_matrix(field: MersenneField, pieces: int, wanted: int, holders: Sequence[int]) -> Elements:
    """(wanted, pieces): the first pieces = matrix @ the shares of as many holders as there are pieces."""
    return _basis(field, pieces + 1 + np.asarray(holders), np.arange(1, wanted + 1))


def _basis(field: MersenneField, points: np.ndarray, at: np.ndarray) -> Elements:  # type: ignore[type-arg]
    """Entry (i, k): the product over m != k of (at_i - points_m) / (points_k - points_m).

    All are small whole numbers, so that a table has the inverse of every difference.
    """
    most = int(max(points.max(), at.max()))
    table = field.inverses(most)
    all_differences = np.ones(len(at), np.uint64)
    weights = np.ones(len(points), np.uint64)
    for m, point in enumerate(points):
        all_differences = field.multiply(all_differences, _element(field, at - point))
        inverse = _signed(field, table, points - point)
        inverse[m] = 1
        weights = field.multiply(weights, inverse)
    own = _signed(field, table, at[:, None] - points[None, :])
    return field.multiply(field.multiply(all_differences[:, None], weights[None, :]), own)


def _element(field: MersenneField, difference: np.ndarray) -> Elements:  # type: ignore[type-arg]
    return np.where(difference < 0, field.prime + difference, difference).astype(np.uint64)


def _signed(field: MersenneField, table: Elements, difference: np.ndarray) -> Elements:  # type: ignore[type-arg]
    """The inverse of each difference; 0 where it is 0."""
    inverse: Elements = table[np.abs(difference)]
    return np.where((difference < 0) & (inverse > 0), np.uint64(field.prime) - inverse, inverse)
