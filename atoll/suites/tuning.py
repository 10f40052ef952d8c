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
_ATTEMPTS = 100  # to pair values of keys so that no point comes twice
Settings = dict[str, Any]
Grid = Mapping[str, Sequence[Any]]


def candidates(place: Place, tuning: Tuning, suite: str, shared: Grid) -> list[Settings]:
    """The settings to choose from; one empty one, the settings as written, where there is nothing to choose.

    `shared` has the values that all methods have in common, where their grids are cut.
    """
    if tuning == "paper":
        return product(place.published_grid)
    if tuning == "none" or place.trials == 1:
        return [{}]
    return cut({key: shared.get(key, values) for key, values in place.grid.items()}, place.trials, suite)


def product(grid: Mapping[str, Sequence[Any]]) -> list[Settings]:
    """Every point of a grid, the last key fastest.

    >>> product({"algorithm.mu": [0.1, 1], "algorithm.lr": [0.5]})
    [{'algorithm.mu': 0.1, 'algorithm.lr': 0.5}, {'algorithm.mu': 1, 'algorithm.lr': 0.5}]
    """
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def shared_values(grids: Sequence[Grid], trials: int) -> Grid:
    """Of keys in several grids, the values that all of these have: {} where no grid is cut, or too few would be left.

    >>> rates = {"lr": [0.01, 0.03, 0.1, 0.3]}
    >>> shared_values([rates, {"lr": [0.1, 0.3], "mu": [0.01, 0.1]}], 2)
    {'lr': [0.1, 0.3]}
    """
    if all(_points(grid) <= trials for grid in grids):
        return {}
    lists: dict[str, list[Sequence[Any]]] = {}
    for key, values in (item for grid in grids for item in grid.items()):
        lists.setdefault(key, []).append(values)
    common = {k: [v for v in many[0] if all(v in x for x in many)] for k, many in lists.items() if len(many) > 1}
    narrowed = [{key: common.get(key, values) for key, values in grid.items()} for grid in grids]
    enough = all(_points(new) >= min(trials, _points(old)) for new, old in zip(narrowed, grids, strict=True))
    return common if enough else {}


def _points(grid: Grid) -> int:
    return math.prod(map(len, grid.values()))


def spread(values: Sequence[Any], number: int) -> list[Any]:
    """So many of the values, evenly over their range; each as often as any other where that is more than there are.

    >>> spread([0.01, 0.03, 0.1, 0.3], 2), spread([0.01, 0.1], 3)
    ([0.03, 0.3], [0.01, 0.1, 0.1])
    """
    return [values[(2 * i + 1) * len(values) // (2 * number)] for i in range(number)]


def cut(grid: Mapping[str, Sequence[Any]], number: int, suite: str) -> list[Settings]:
    """So many points of a grid, each key spread over its range; all, if they are not more.

    What a key gets depends on its own list alone, so that methods that share a learning rate try the same ones,
    whatever else they have. Which values go together is drawn by the suite's name.
    """
    points = product(grid)
    if len(points) <= number:
        return points
    for attempt in range(_ATTEMPTS):
        columns = {key: _mixed(spread(values, number), suite, key, attempt) for key, values in grid.items()}
        drawn = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        if all(drawn.count(point) == 1 for point in drawn):
            return [point for point in points if point in drawn]
    return spread(points, number)  # nearly all of a small grid: every value of every key is there


def _mixed(values: list[Any], suite: str, key: str, attempt: int) -> list[Any]:
    order = rng.choice(rng.key(suite, "trials", key, attempt), len(values), len(values)).tolist()
    return [values[i] for i in order]


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
