"""How many clients a sum needs."""

from __future__ import annotations

from math import floor
from typing import Annotated, TypeAlias

from pydantic import Field

Threshold: TypeAlias = Annotated[float, Field(gt=0)]  # below 1 a share of the clients; from 1 on a number of them


def threshold_of(threshold: float, clients: int) -> int:
    """More than a share of the clients, or a number of them; two at least, for one alone has no sum to hide in.

    >>> threshold_of(2 / 3, 9), threshold_of(0.5, 9), threshold_of(4, 9), threshold_of(1, 9)
    (7, 5, 4, 2)
    """
    return max(2, floor(threshold * clients + 1e-9) + 1 if threshold < 1 else int(threshold))
