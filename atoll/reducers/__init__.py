"""How many updates become one."""

from collections.abc import Callable
from typing import Any

from atoll.reducers.collect import Collect
from atoll.reducers.mean import Mean
from atoll.reducers.robust import Median, TrimmedMean

REDUCERS: dict[str, Callable[..., Any]] = {"mean": Mean, "median": Median, "trimmed_mean": TrimmedMean}

__all__ = ["REDUCERS", "Collect", "Mean", "Median", "TrimmedMean"]
