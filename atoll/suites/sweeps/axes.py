"""From one file with axes to complete experiments, one for each cell of the product.

>>> cells = expand({"rounds": 5, "data": "digits", "partition": {"name": "iid", "clients": 4},
...                 "algorithm": "fedavg", "sweep": {"algorithm.lr": [0.1, 0.2], "seeds": 2}})
>>> [cell.name for cell in cells]
['lr=0.1,seed=0', 'lr=0.1,seed=1', 'lr=0.2,seed=0', 'lr=0.2,seed=1']
>>> cells[2].coordinates, cells[2].experiment.algorithm["lr"]
({'algorithm.lr': 0.2, 'seed': 0}, 0.2)
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.errors import ConfigError
from atoll.experiment import Experiment, set_at_path
from atoll.suites.sweeps import sweep_table


@dataclass(frozen=True)
class SweepCell:
    """One experiment of a sweep."""

    name: str  # unique in its sweep, and fit to name a folder
    coordinates: dict[str, Any]  # axis -> value
    experiment: Experiment
    digest: str


def expand(raw: Mapping[str, Any]) -> list[SweepCell]:
    """Every cell, the last axis fastest, seeds last of all; cells that are the same experiment once.

    Or one ConfigError with everything that is wrong in any cell.
    """
    from atoll.suites.sweeps.naming import labels, names  # with the report: slow to import, and workers need no names

    base, sweep = sweep_table.read(raw)
    words = labels(sweep.axes)
    picks = list(itertools.product(*(range(len(values)) for values in sweep.axes.values())))
    named = names([[words[axis][i] for axis, i in zip(sweep.axes, pick, strict=True)] for pick in picks])
    cells: dict[str, SweepCell] = {}
    problems: dict[str, list[str]] = {}
    for name, pick in zip(named, picks, strict=True):
        coordinates = {axis: sweep.axes[axis][i] for axis, i in zip(sweep.axes, pick, strict=True)}
        try:
            experiment = Experiment.parse(changed(base, coordinates))
        except ConfigError as e:
            for problem in e.problems:
                problems.setdefault(problem, []).append(name)
            continue
        digest = experiment.digest()
        cells.setdefault(digest, SweepCell(name, copy.deepcopy(coordinates), experiment, digest))
    if problems:
        raise ConfigError([_where(affected, len(named)) + problem for problem, affected in problems.items()])
    return list(cells.values())


def changed(base: Mapping[str, Any], coordinates: Mapping[str, Any]) -> dict[str, Any]:
    """The file with these values: whole tables first, then keys inside of them."""
    raw = copy.deepcopy(dict(base))
    for axis, value in sorted(coordinates.items(), key=lambda pair: pair[0].count(".")):
        set_at_path(raw, axis.split("."), copy.deepcopy(value), f"sweep.{axis}")
    return raw


def _where(affected: Sequence[str], cells: int) -> str:
    """The cells that have a problem, unless all have it."""
    if len(affected) == cells:
        return ""
    more = f" and {len(affected) - 3} more" if len(affected) > 4 else ""
    listed = "; ".join(affected[:3] if more else affected)
    return f"cell{'s' if len(affected) > 1 else ''} {listed}{more}: "
