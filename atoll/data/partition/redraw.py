"""Drawing again until everybody has enough, and no longer than it can help."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from atoll.errors import PartitionError

Ints = NDArray[np.int64]
Profile = Literal["paper", "niid-bench"]  # as published, or as the published code does it
Short = Literal["redraw", "borrow"]

BENCH_MINIMUM = 10  # the smallest client that NIID-Bench's code accepts
_DRAWS = 100
_HOPELESS = 30  # clients short in one draw: a draw with none has a chance of about exp(-30)


def redraw(draw: Callable[[int], Ints], minimum: int, short: Short | None, wish: str) -> Ints:
    """The first draw (counts by class and client, (K, N)) in which every client has the minimum.

    With `short = "borrow"` the first draw, whatever it is: the caller fills the small clients (None: it cannot).
    """
    for attempt in range(_DRAWS):
        counts = draw(attempt)
        few = int((counts.sum(0) < minimum).sum())
        if few == 0 or short == "borrow":
            return counts
        if few > _HOPELESS:
            break
    instead = "Use a larger alpha, fewer clients, or a smaller minimum."
    if short is not None:
        instead = instead.replace("or a smaller minimum.", "a smaller minimum, or partition.short = 'borrow' ")
        instead += "to fill them from the largest clients."
    raise PartitionError(
        f"partition.minimum: {few} of {counts.shape[1]} clients have fewer than {minimum} examples at {wish}, "
        f"in draw {attempt + 1} as in those before. {instead}"
    )


def demanded(minimum: int, profile: Profile) -> int:
    """The smallest size that a client may have under this profile."""
    return minimum if profile == "paper" else max(minimum, BENCH_MINIMUM)
