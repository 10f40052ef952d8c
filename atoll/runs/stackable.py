"""Which experiments can run as one stack, told from their files alone."""

from __future__ import annotations

import inspect
import json
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from atoll.algorithms import ALGORITHMS
from atoll.core import program_structure
from atoll.experiment import Entry, Experiment, LocalTable, Nested, build, find_builder
from atoll.transforms import TRANSFORMS

_SAME = {  # what stacked runs share, and why
    "data": "they share one data set",
    "task": "they share one model",
    "local": "their clients take steps side by side",
    "reducer": "they share one reducer",
    "round": "they share one kind of round",
    "engine": "they share one engine",
}


def why_not_stackable(experiments: Sequence[Experiment]) -> str | None:
    """Why these cannot run as one stack, beginning with the key that is in the way; None if they can.

    They may differ in numbers (`seed`, `rounds`, every numeric setting of algorithm, transforms and local privacy) and
    in what is done between rounds: `partition`, `cohort`, `evaluate`, `stop`, `checkpoint`, `label`, `on_divergence`.
    """
    first = experiments[0]
    name = first.engine["name"]
    if name not in ("auto", "vector"):
        return f"engine.name: {name!r} does not stack clients, so it cannot stack runs. Use 'vector' or 'auto'."
    if (
        any(_noisy(e.partition) for e in experiments)
        and len({(e.seed, json.dumps(e.partition)) for e in experiments}) > 1
    ):
        return (
            "partition: feature noise belongs to the clients of one seed and partition, so runs that differ in these "
            "cannot share their data."
        )
    for other in experiments[1:]:
        problem = _difference(first, other)
        if problem:
            return problem
    return None


def without_numbers(local: LocalTable) -> LocalTable:
    """The table with the numbers of its privacy left open: they are data to engines."""
    if local.privacy is None:
        return local
    open_ = local.privacy.model_copy(update=dict.fromkeys(local.privacy.numbers))
    return local.model_copy(update={"privacy": open_})


def _difference(a: Experiment, b: Experiment) -> str | None:
    for key, why in _SAME.items():
        x, y = (without_numbers(e.local) if key == "local" else getattr(e, key) for e in (a, b))
        if x != y:
            return f"{_where(key, x, y)}: differs, but stacked runs must agree: {why}."
    if [t["name"] for t in a.transform] != [t["name"] for t in b.transform]:
        return "transform: differs, but stacked runs must agree: their updates take the same way."
    pairs = [("algorithm", a.algorithm, b.algorithm)]
    pairs += [(f"transform.{i}", x, y) for i, (x, y) in enumerate(zip(a.transform, b.transform, strict=True))]
    for where, x, y in pairs:
        option = _structural(where, x, y)
        if option:
            return f"{where}.{option}: differs, but stacked runs may differ in numeric settings only."
    return _sizes(a, b)


def _sizes(a: Experiment, b: Experiment) -> str | None:
    """Algorithms that know how many clients there are must know the same number."""
    builder = find_builder(ALGORITHMS, a.algorithm["name"], "algorithm.name")
    if "population" not in inspect.signature(builder).parameters:
        return None
    sizes = [(e.partition or {}).get("clients") for e in (a, b)]
    if sizes[0] == sizes[1]:
        return None
    name = a.algorithm["name"]
    return f"partition.clients: {sizes[0]} and {sizes[1]}, but {name} counts its clients: stacked runs must agree."


def _structural(where: str, a: Entry, b: Entry) -> str | None:
    """The first option whose change from one to the other is more than a new number."""
    for key in _differing(a, b):
        if key == "name" or _built(where, a) != _built(where, _changed(a, b, key)):
            return key
    return None if _built(where, a) == _built(where, b) else next(_differing(a, b))


def _differing(a: Entry, b: Entry) -> Iterator[str]:
    return (k for k in {**a, **b} if a.get(k) != b.get(k))


def _changed(a: Entry, b: Entry, key: str) -> Entry:
    rest = {k: v for k, v in a.items() if k != key}
    return {**rest, key: b[key]} if key in b else rest


_AS_WRITTEN: Nested = {"models": lambda entry, _: json.dumps(entry, sort_keys=True)}


def _built(where: str, entry: Entry) -> Hashable:
    """The entry as the program would build it, without its numbers; the entry as it is, where that needs a task."""
    registry: Any = ALGORITHMS if where == "algorithm" else TRANSFORMS
    try:
        return program_structure(build(registry, entry, where=where, nested=_AS_WRITTEN, task=None, population=1))
    except (AttributeError, TypeError, ValueError):
        return json.dumps(entry, sort_keys=True)


def _noisy(partition: Any) -> bool:
    """Is there feature noise in the entry, or in those that it is composed of?"""
    if isinstance(partition, list):
        return any(_noisy(p) for p in partition)
    return isinstance(partition, dict) and (partition.get("name") == "noise" or _noisy(partition.get("of")))


def _where(key: str, a: Any, b: Any) -> str:
    """The key, with the first option that differs."""
    x, y = ({**v} if isinstance(v, dict) else v.model_dump() for v in (a, b))
    return f"{key}.{next(_differing(x, y))}"
