"""How many updates become one."""

from collections.abc import Callable
from typing import Any

from atoll.reducers.mean import Mean
from atoll.reducers.robust import Median, TrimmedMean
from atoll.reducers.stack import Keep, Stack

REDUCERS: dict[str, Callable[..., Any]] = {"mean": Mean, "median": Median, "trimmed_mean": TrimmedMean}

__all__ = ["REDUCERS", "Keep", "Mean", "Median", "Stack", "TrimmedMean"]
