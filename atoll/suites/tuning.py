"""How settings are found: with the same number of trials for every method, on examples kept from training.

validation   every method tries as many settings of its grid, at the first seed, with a tenth of every client's
             examples held out; the best mean over clients of the held-out metric wins, and runs at all seeds
paper        the published grid at all seeds, and the best mean on the test data, as papers often do
none         the settings as they are written
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from atoll import rng
from atoll.records import Tuning
from atoll.report import counted
from atoll.suites.expand import Place

HOLDOUT = 0.1
Settings = dict[str, Any]


def candidates(place: Place, tuning: Tuning, suite: str) -> list[Settings]:
    """The settings to choose from; one empty one, the settings as written, where there is nothing to choose."""
    if tuning == "paper":
        return product(place.published_grid)
    if tuning == "none" or place.trials == 1:
        return [{}]
    points = product(place.grid)
    return points[: place.trials] if len(place.grid) == 1 else subset(points, place.trials, suite)


def product(grid: Mapping[str, Sequence[Any]]) -> list[Settings]:
    """Every point of a grid, the last key fastest.

    >>> product({"algorithm.mu": [0.1, 1], "algorithm.lr": [0.5]})
    [{'algorithm.mu': 0.1, 'algorithm.lr': 0.5}, {'algorithm.mu': 1, 'algorithm.lr': 0.5}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def subset(points: Sequence[Settings], number: int, suite: str) -> list[Settings]:
    """So many of the points, drawn by the suite's name, in their order; all, if they are not more."""
    if len(points) <= number:
        return list(points)
    chosen = rng.choice(rng.key(suite, "trials"), len(points), number).sort().values.tolist()
    return [points[i] for i in chosen]


def unequal(place: Place, tuning: Tuning, budget: int) -> str | None:
    """Why the method would get another number of trials than the others, unless it says why it should."""
    if tuning != "validation" or place.why is not None or budget == 1:
        return None
    points = len(product(place.grid)) if place.grid else 0
    if points >= place.trials:
        return None
    method = list(place.path.values())[-1]
    what = f"its grid has {counted(points, 'setting')}" if points else "it has no grid"
    return (
        f"{method}: every method is tuned with {budget} trials, and {what}. Give it a grid of {budget} or more, or "
        'trials = 1 and why = "..."; or run with --tuning none.'
    )


def choose(scores: Sequence[float], higher: bool) -> int | None:
    """The best score; the first of equals. What is not finite (a trial that failed or diverged) is worse than all.

    >>> choose([0.5, float("nan"), 0.7, 0.7], higher=True), choose([float("nan")], higher=True)
    (2, None)
    """
    finite = [i for i, score in enumerate(scores) if math.isfinite(score)]
    if not finite:
        return None
    return (max if higher else min)(finite, key=lambda i: scores[i])
