"""Which experiments can run as one stack, told from their files alone.

They must agree in their `stack_shape`. A seed is no part of it, nor is any number that engines take as data
(`core/settings.py`): lr, mu, server_lr, momentum, a clip's bound. A number that decides what is built (momentum = 0 is
plain SGD) is.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from atoll.algorithms import ALGORITHMS
from atoll.core import program_structure
from atoll.experiment import Entry, Experiment, Nested, build, find_builder, make_attack
from atoll.transforms import TRANSFORMS

_SAME = {  # what stacked runs share, and why
    "data": "they share one data set",
    "task": "they share one model",
    "local": "their clients take steps side by side",
    "reducer": "they share one reducer",
    "round": "they share one kind of round",
    "engine": "they share one engine",
    "secure": "they share one protocol",
    "attack": "their attackers do the same",
}


def why_not_stackable(experiments: Sequence[Experiment]) -> str | None:
    """Why these cannot run as one stack, beginning with the key that is in the way; None if they can.

    They may differ in numbers (`seed`, `rounds`, every numeric setting of algorithm, transforms and local privacy) and
    in what is done between rounds: `partition`, `cohort`, `evaluate`, `stop`, `checkpoint`, `label`, `on_divergence`.
    """
    first, *others = experiments
    name = first.engine["name"]
    if name not in ("auto", "vector"):
        return f"engine.name: {name!r} does not stack clients, so it cannot stack runs. Use 'vector' or 'auto'."
    wanted = stack_shape(first)
    for other in others:
        found = stack_shape(other)
        for key in wanted:
            if wanted[key] != found[key]:
                return _difference(key, first, other)
    return None


def stack_shape(experiment: Experiment) -> dict[str, Hashable]:
    """What the runs of one stack have in common, key by key."""
    tables = _tables(experiment)
    noisy = "noise" in partition_names(experiment.partition)
    one_partition = noisy or _poisons(experiment) or _asks("largest_client", experiment)
    return {
        **{key: _written(tables.get(key)) for key in _SAME},
        "transform": tuple(entry["name"] for entry in experiment.transform),
        **{where: _built(where, entry) for where, entry in _entries(experiment).items()},
        "partition": _written([experiment.seed, experiment.partition]) if one_partition else None,
        "partition.clients": _clients(experiment),
        "metric": _written([experiment.metric, experiment.evaluate.metrics]),
    }


def _poisons(experiment: Experiment) -> bool:
    """Do attackers put rows of their own beside the data, which are those of one seed and partition?"""
    return experiment.attack is not None and make_attack(experiment).poisons


def partition_names(partition: Any) -> list[str]:
    """The names of a partition and of those that it is composed of."""
    if isinstance(partition, list):
        return [name for part in partition for name in partition_names(part)]
    return [str(partition.get("name")), *partition_names(partition.get("of"))] if isinstance(partition, dict) else []


def _tables(experiment: Experiment) -> dict[str, Any]:
    """The file, the numbers of local privacy left open: they are data to engines."""
    tables, privacy = experiment.complete(), experiment.local.privacy
    if privacy is not None:
        tables["local"]["privacy"].update(dict.fromkeys(privacy.numbers))
    return tables


def _entries(experiment: Experiment) -> dict[str, Entry]:
    """The entries that may differ in numbers, by where they stand."""
    return {"algorithm": experiment.algorithm, **{f"transform.{i}": e for i, e in enumerate(experiment.transform)}}


def _clients(experiment: Experiment) -> int | None:
    """How many clients there are, where the algorithm knows the number."""
    return (experiment.partition or {}).get("clients") if _asks("population", experiment) else None


def _asks(parameter: str, experiment: Experiment) -> bool:
    """Does the algorithm ask for this? `largest_client`: it tells a client's examples apart by their places."""
    builder = find_builder(ALGORITHMS, experiment.algorithm["name"], "algorithm.name")
    return parameter in inspect.signature(builder).parameters


_AS_WRITTEN: Nested = {"models": lambda entry, _: _written(entry)}


def _built(where: str, entry: Entry) -> Hashable:
    return _structure(where, _written(entry))


@lru_cache(maxsize=1024)
def _structure(where: str, written: str) -> Hashable:
    """The entry as the program would build it, without its numbers; the entry as it is, where that needs a task."""
    registry: Any = ALGORITHMS if where == "algorithm" else TRANSFORMS
    given = {"task": None, "population": 1, "largest_client": 1}
    try:
        return program_structure(build(registry, json.loads(written), where=where, nested=_AS_WRITTEN, **given))
    except Exception:  # a stranger's builder may raise anything
        return written


def _written(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _difference(key: str, a: Experiment, b: Experiment) -> str:
    """What is said of two experiments whose shapes differ in this key."""
    if key == "transform":
        return "transform: differs, but stacked runs must agree: their updates take the same way."
    if key == "metric":
        return "metric: differs, but stacked runs must agree: they are measured together."
    if key == "partition":
        return (
            "partition: feature noise, poisoned examples and places of a client's own examples belong to the clients "
            "of one seed and partition, so runs that differ in these cannot share their data."
        )
    if key == "partition.clients":
        counts = f"{_clients(a)} and {_clients(b)}, but {a.algorithm['name']} counts its clients"
        return f"partition.clients: {counts}: stacked runs must agree."
    if key in _SAME:
        option = next(_differing(_tables(a).get(key) or {}, _tables(b).get(key) or {}))
        return f"{key}.{option}: differs, but stacked runs must agree: {_SAME[key]}."
    option = _structural(key, _entries(a)[key], _entries(b)[key])
    return f"{key}.{option}: differs, but stacked runs may differ in numeric settings only."


def _structural(where: str, a: Entry, b: Entry) -> str:
    """The first option whose change from one to the other is more than a new number."""
    alone = (k for k in _differing(a, b) if k == "name" or _built(where, a) != _built(where, _changed(a, b, k)))
    return next(alone, next(_differing(a, b)))


def _differing(a: Entry, b: Entry) -> Iterator[str]:
    return (k for k in {**a, **b} if a.get(k) != b.get(k))


def _changed(a: Entry, b: Entry, key: str) -> Entry:
    rest = {k: v for k, v in a.items() if k != key}
    return {**rest, key: b[key]} if key in b else rest
