"""How long a server waits, and whose work it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.clock.quantities import Floats


class Wait(NamedTuple):
    """When the server went on, and who had reported by then and is taken."""

    end: float
    counted: NDArray[np.bool_]
    void: bool  # fewer than min_reports: nobody is taken


@dataclass(frozen=True)
class Patience:
    """A server goes on when `wanted` have reported, when nobody is left to wait for, or when the deadline is over.

    With fewer than `min_reports` at the deadline it waits on until there are as many, for `grace` seconds at most; then
    the round is void. It hears at once of a client that is lost (its connection breaks).
    """

    deadline: float = np.inf
    wanted: int | None = None  # None: everybody
    min_reports: int = 1
    grace: float = 0.0

    @property
    def leaves_out(self) -> bool:
        """Could it go on without somebody who would have reported?"""
        return bool(np.isfinite(self.deadline)) or self.wanted is not None or self.min_reports > 1

    def wait(self, start: float, arrived: Floats, heard: Floats, rank: Floats) -> Wait:
        """`arrived`: when each report is here, inf for none; `heard`: by then it is known to come or not to come.

        Of reports at one moment the one of lower `rank` is first.
        """
        end = self._end(start, np.sort(arrived), float(heard.max(initial=start)))
        first = np.lexsort((rank, arrived))[: self.wanted]
        counted = np.zeros(len(arrived), bool)
        counted[first] = arrived[first] <= end
        void = len(arrived) > 0 and int(counted.sum()) < self.min_reports
        return Wait(end, counted & (not void), void)

    def _end(self, start: float, arrivals: Floats, all_heard: float) -> float:
        full = _nth(arrivals, self.wanted or len(arrivals))
        limit = start + self.deadline
        enough = _nth(arrivals, self.min_reports)
        return float(min(full, all_heard, max(limit, min(enough, limit + self.grace))))


def _nth(arrivals: Floats, n: int) -> float:
    return float(arrivals[n - 1]) if 0 < n <= len(arrivals) else np.inf
