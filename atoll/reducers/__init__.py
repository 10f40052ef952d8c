"""How many updates become one."""

from collections.abc import Callable
from typing import Any

from atoll.reducers.attacked import Attacked, Bounds
from atoll.reducers.client_weights import ScaledMean, client_weights
from atoll.reducers.collect import Collect
from atoll.reducers.mean import Mean
from atoll.reducers.robust import Median, TrimmedMean
from atoll.reducers.secure_mean import SECURE, SecureMean

REDUCERS: dict[str, Callable[..., Any]] = {
    "mean": Mean,
    "client_weights": client_weights,
    "median": Median,
    "trimmed_mean": TrimmedMean,
}

__all__ = [
    "REDUCERS",
    "SECURE",
    "Attacked",
    "Bounds",
    "Collect",
    "Mean",
    "Median",
    "ScaledMean",
    "SecureMean",
    "TrimmedMean",
    "client_weights",
]
