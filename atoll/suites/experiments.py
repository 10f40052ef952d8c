"""From places to the experiments that are run for them, all checked before anything runs."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from atoll.errors import ConfigError
from atoll.experiment import Experiment, set_at_path
from atoll.records import Tuning
from atoll.report import short, show
from atoll.suites.expand import Place
from atoll.suites.merge_tables import merged
from atoll.suites.suite import Suite, listed
from atoll.suites.sweeps import SweepCell
from atoll.suites.tuning import HOLDOUT, Grid, Settings, candidates, shared_values, unequal
from atoll.tasks import METRICS, USUAL

_LONGEST = 100


@dataclass(frozen=True)
class Candidate:
    """A setting that a place may get: what is run to judge it, and what is run if it is chosen."""

    settings: Settings
    trials: tuple[SweepCell, ...]  # none where there is nothing to choose
    finals: tuple[SweepCell, ...]  # one for each seed


@dataclass(frozen=True)
class CellPlan:
    """A place and all that may be run for it."""

    place: Place
    options: tuple[Candidate, ...]

    @property
    def tuned(self) -> bool:
        """Is there something to choose?"""
        return len(self.options) > 1


def cell_plans(suite: Suite, places: Sequence[Place], tuning: Tuning) -> list[CellPlan]:
    """Every place with its experiments; or one ConfigError with everything that is wrong in any of them."""
    twice = _twice(places)
    grids = [value.grid for value in suite.values[suite.axes[-1]].values() if value.grid and value.why is None]
    shared = shared_values(grids, suite.trials)
    plans: list[CellPlan] = []
    problems: dict[str, list[str]] = {}
    for place in places:
        try:
            plans.append(_job(suite, place, tuning, f"{place.block}-" if place.name in twice else "", shared))
        except ConfigError as e:
            for problem in e.problems:
                problems.setdefault(problem, []).append(place.name)
        if wrong := unequal(place, tuning, suite.trials):
            problems[wrong] = [place.name] * len(places)  # it is the method's, wherever it stands
    if problems:
        raise ConfigError([_where(names, len(places)) + problem for problem, names in problems.items()])
    return plans


def _job(suite: Suite, place: Place, tuning: Tuning, prefix: str, shared: Grid) -> CellPlan:
    settings = candidates(place, tuning, suite.name, shared)
    options: list[Candidate] = []
    problems: dict[str, None] = {}
    place = _measuring(place, suite.metric)
    for one in settings:
        try:
            options.append(_option(place, one, tuning, len(settings) > 1, prefix))
        except ConfigError as e:
            problems |= dict.fromkeys(e.problems)
    if problems:
        raise ConfigError(list(problems))
    return CellPlan(place, tuple(options))


def _measuring(place: Place, metric: str) -> Place:
    """The place with the suite's metric among those that are measured, where it is not anyway."""
    name = metric.split(".")[1] if "." in metric else metric
    if name in USUAL or name not in METRICS:
        return place
    table = place.base.get("evaluate", {})
    asked = dict.fromkeys([*table.get("metrics", []), name])
    return replace(place, base={**place.base, "evaluate": {**table, "metrics": list(asked)}})


def _option(place: Place, settings: Settings, tuning: Tuning, tried: bool, prefix: str) -> Candidate:
    base = changed(place.base, settings)
    words = [f"{prefix}{place.name}", *_labels(settings)]
    finals = _cells(base, words, place, settings, place.seeds)
    if not tried or tuning == "none":
        return Candidate(settings, (), finals)
    if tuning == "paper":
        return Candidate(settings, finals, finals)
    held = merged(base, {"evaluate": {"holdout": _holdout(base)}})
    return Candidate(settings, _cells(held, [*words, "trial"], place, settings, place.seeds[:1]), finals)


def changed(base: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The experiment with tuned settings."""
    raw = copy.deepcopy(dict(base))
    for path, value in settings.items():
        set_at_path(raw, path.split("."), copy.deepcopy(value), f"grid.{path}")
    return raw


def _holdout(base: Mapping[str, Any]) -> Any:
    """What the suite itself holds out, or a tenth."""
    table = base.get("evaluate")
    return (table.get("holdout") or HOLDOUT) if isinstance(table, Mapping) else HOLDOUT


def _cells(
    base: Mapping[str, Any], words: Sequence[str], place: Place, settings: Settings, seeds: Sequence[int]
) -> tuple[SweepCell, ...]:
    """An experiment for each seed; checked once, since seeds that count up from a good one are good."""
    first = Experiment.parse({**base, "seed": seeds[0]})
    cells = []
    for seed in seeds:
        experiment = first.model_copy(update={"seed": seed})
        name, coordinates = folder_name([*words, f"seed={seed}"]), {**place.path, **settings, "seed": seed}
        cells.append(SweepCell(name, coordinates, experiment, experiment.digest()))
    return tuple(cells)


def folder_name(words: Sequence[str]) -> str:
    """A name that is fit for a folder, and still read at a glance.

    >>> folder_name(["fmnist/dirichlet(0.5)/scaffold (as published)", "seed=0"])
    'fmnist-dirichlet(0.5)-scaffold-(as-published)-seed=0'
    """
    plain = re.sub(r"[^\w.,=+~()-]+", "-", "-".join(words)).strip(".-")
    return plain[:_LONGEST] or "cell"


def _labels(settings: Settings) -> list[str]:
    words = short(list(settings))
    return [f"{words[path]}={show(value)}" for path, value in settings.items()]


def _twice(places: Sequence[Place]) -> set[str]:
    """Names that stand in more than one block."""
    names = [p.name for p in places]
    return {n for n in names if names.count(n) > 1}


def _where(names: Sequence[str], cells: int) -> str:
    """The cells that have a problem, unless all have it."""
    unique = list(dict.fromkeys(names))
    if len(names) >= cells:
        return ""
    return f"cell{'s' if len(unique) > 1 else ''} {listed(unique, 3)}: "


def unique(cells: Sequence[SweepCell]) -> list[SweepCell]:
    """Cells that are the same experiment once, and every name once."""
    by_digest: dict[str, SweepCell] = {}
    taken: set[str] = set()
    for cell in cells:
        if cell.digest in by_digest:
            continue
        more = (f"{cell.name}~{i}" for i in count(2))
        name = next(n for n in chain([cell.name], more) if n not in taken)
        taken.add(name)
        by_digest[cell.digest] = replace(cell, name=name)
    return list(by_digest.values())
