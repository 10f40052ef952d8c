"""FedEval's own score rules, each from 0 to 5 (its documentation, benchmark/radar.md, 2022).

Its rule for who is slower than the baseline, e^(1 - P_b / P_a), rises with the cost: twice as slow scores 1.65, above
the baseline's 1. `published=True` repeats it; otherwise it is e^(1 - P_a / P_b), which falls from 1 to 0.
"""

from __future__ import annotations

import math
from typing import Literal

Exchange = Literal["raw", "single", "multiple", "hidden", "secure", "encrypted"]
PRIVACY: dict[Exchange, float] = {
    "raw": 0.0,  # raw data is exchanged
    "single": 1.0,  # plain parameters of a single round of training
    "multiple": 2.0,  # of several
    "hidden": 3.0,  # under differential privacy, or compressed
    "secure": 4.0,  # secure aggregation
    "encrypted": 5.0,  # homomorphic encryption
}
_CENTRAL = ((0.01, 5.0), (0.03, 4.0), (0.05, 3.0), (0.10, 2.0), (0.20, 1.0))
_EVEN = ((0.01, 3.0), (0.03, 2.0), (0.05, 1.0))
HANDLED = 0.01  # our reading of "handled": a fault costs at most so much
COMPRESSORS = frozenset(
    {  # transforms after which an update is not what was trained
        *("top_k", "rand_k", "low_rank", "qsgd", "uniform_quantise", "drive", "sign", "ternary"),
        *("mask_layers", "shared_mask", "sketch", "relevance"),
    }
)
BEST = {"rounds": 1.0, "bytes": 0.0, "seconds": 0.0}


def fedeval_effectiveness(federated: float, local: float, central: float) -> float:
    """5 to 1 for at most 1, 3, 5, 10, 20 points below pooled data; 0 for who is not above training alone.

    >>> fedeval_effectiveness(0.978, 0.113, 0.986), fedeval_effectiveness(0.81, 0.48, 0.85)
    (5.0, 3.0)
    >>> fedeval_effectiveness(0.4, 0.48, 0.85), fedeval_effectiveness(0.5, 0.1, 0.9)
    (0.0, 0.0)
    """
    return 0.0 if federated <= local else _first(central - federated, _CENTRAL)


def fedeval_robustness(uneven: float, even: float, straggling: float | None, dropping: float | None) -> float:
    """3, 2, 1 for a loss of at most 1, 3, 5 points to IID data; 1 more for stragglers handled, 1 for dropouts.

    The last two are what these faults cost; None: not measured, no point.

    >>> fedeval_robustness(0.978, 0.987, 0.0, 0.2), fedeval_robustness(0.43, 0.94, None, None)
    (4.0, 0.0)
    """
    handled = sum(cost is not None and cost <= HANDLED + 1e-12 for cost in (straggling, dropping))
    return _first(even - uneven, _EVEN) + handled


def fedeval_cost(cost: float, baseline: float, best: float, published: bool = False) -> float:
    """1 for the baseline, 5 for the best thinkable: 1 + 4 (P_b - P_a) / (P_b - P); below 1 for who is worse.

    >>> fedeval_cost(50.0, 100.0, 0.0), fedeval_cost(100.0, 100.0, 0.0), round(fedeval_cost(200.0, 100.0, 0.0), 3)
    (3.0, 1.0, 0.368)
    >>> round(fedeval_cost(200.0, 100.0, 0.0, published=True), 3), fedeval_cost(math.inf, 100.0, 0.0)
    (1.649, 0.0)
    """
    if cost > baseline:
        if not math.isfinite(cost):
            return math.e if published else 0.0
        return math.exp(1 - (baseline / cost if published else cost / baseline))
    return 1.0 + (4.0 * (baseline - cost) / (baseline - best) if baseline > best else 0.0)


def fedeval_privacy(exchange: Exchange) -> float:
    """By what is exchanged."""
    return PRIVACY[exchange]


def _first(loss: float, steps: tuple[tuple[float, float], ...]) -> float:
    return next((points for most, points in steps if loss <= most + 1e-12), 0.0)
