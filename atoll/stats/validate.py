"""What the statistics take: finite numbers, checked once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.errors import ConfigError, DataError

ROUNDING = 1e-12  # relative: what adding up in another order may change

Floats = NDArray[np.float64]
Values = Sequence[float] | Floats


def finite(values: Values, what: str, least: int = 1) -> Floats:
    """One-dimensional float64 numbers, at least so many, all finite.

    >>> finite([1, 2], "accuracy")
    array([1., 2.])
    """
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or len(array) < least:
        raise DataError(f"{what}: must be at least {least} numbers in a row (got shape {array.shape}).")
    if not np.isfinite(array).all():
        at = int(np.flatnonzero(~np.isfinite(array))[0])
        raise DataError(
            f"{what}: entry {at} is {array[at]}, which no test can weigh. Leave its seed out and say so, or give a run "
            "that diverged the worst value of the scale."
        )
    return array


def both(a: Values, b: Values, least: int = 1) -> tuple[Floats, Floats]:
    """Two rows of finite numbers of one length: the values of A and B, seed by seed."""
    x, y = finite(a, "A", least), finite(b, "B", least)
    if len(x) != len(y):
        raise DataError(f"pairs: A has {len(x)} values and B {len(y)}. Pair them by seed first: atoll.stats.pair.")
    return x, y


def finite_table(values: Sequence[Sequence[float]] | Floats, what: str = "table") -> Floats:
    """Rows by methods, at least two methods, all finite."""
    rows = [np.atleast_1d(np.asarray(row, np.float64)) for row in values]
    if not rows or len({row.shape for row in rows}) > 1 or rows[0].ndim != 1 or len(rows[0]) < 2:
        raise DataError(f"{what}: must have rows of one length, with two methods or more. Leave out incomplete rows.")
    for number, row in enumerate(rows):
        finite(row, f"{what}, row {number}")
    return np.stack(rows)


def share(value: float, what: str) -> float:
    """A number strictly between 0 and 1.

    >>> share(0.95, "level")
    0.95
    """
    if not 0.0 < value < 1.0:
        raise ConfigError(f"{what}: must be above 0 and below 1 (got {value}).")
    return float(value)


def majority(sure: float) -> float:
    """A probability that only one of several can have: above 0.5.

    >>> majority(0.95)
    0.95
    """
    if share(sure, "sure") <= 0.5:
        raise ConfigError(f"sure: must be above 0.5, or two verdicts could hold (got {sure}).")
    return float(sure)
