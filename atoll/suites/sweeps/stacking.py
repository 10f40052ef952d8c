"""Which cells can be run as one stack: those that differ in numbers only, and whose shapes are therefore the same.

A seed is such a number, and so is every setting that engines take as data (`core/settings.py`): lr, mu, server_lr,
momentum, a clip's bound. What a number decides when something is built (momentum = 0 is plain SGD) is no such number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from atoll.core import Calibrated, setting_names
from atoll.experiment import CATALOGUE, GIVEN, Device, Entry, Experiment, build, find_builder, schema
from atoll.runs import without_numbers
from atoll.suites.sweeps.axes import SweepCell

_ANY = "any number"
_MOST = 24  # runs of one stack that differ in their partitions: an interrupt should not leave all of them half done


def stackable(cells: Sequence[SweepCell], across: bool = False) -> list[list[SweepCell]]:
    """The cells in groups that can run as one stack each, in the order of their first cells.

    `across`: also over partitions with as many clients. A GPU gains from more clients side by side; a CPU does not.
    """
    groups: dict[str, list[SweepCell]] = {}
    for cell in cells:
        groups.setdefault(shape(cell.experiment, across) or cell.digest, []).append(cell)
    found = list(groups.values())
    return [piece for group in found for piece in _pieces(group)] if across else found


def stacks(cells: Sequence[SweepCell], device: Device = "auto") -> list[list[SweepCell]]:
    """The same, as this machine would run them on this device."""
    return stackable(cells, across=torch.cuda.is_available() and device != "cpu")


def _pieces(group: list[SweepCell]) -> list[list[SweepCell]]:
    """In as few pieces of at most so many cells as there can be, of nearly equal length."""
    number = -(-len(group) // _MOST)
    size = -(-len(group) // number)
    return [group[i : i + size] for i in range(0, len(group), size)]


def halved(groups: Sequence[Sequence[SweepCell]], workers: int) -> list[list[SweepCell]]:
    """The groups, the largest cut in two until every worker has one and none is more than a worker's share.

    A stack that is larger would leave the others idle.
    """
    found = [list(group) for group in groups]
    share = -(-sum(map(len, found)) // workers)
    while len(largest := max(found, key=len, default=[])) > (share if len(found) >= workers else 1):
        at, middle = found.index(largest), (len(largest) + 1) // 2
        found[at : at + 1] = [largest[:middle], largest[middle:]]
    return found


def shape(experiment: Experiment, across: bool = False) -> str | None:
    """What cells of one stack must have in common; None for a cell that runs alone."""
    partition_names = _partitions(experiment.partition)
    if experiment.engine["name"] not in ("auto", "vector") or any(":" in name for name in partition_names):
        return None  # a partition of a stranger's may read inputs in a way of its own
    whole = experiment.complete()
    if "noise" not in partition_names:  # which belongs to the clients of one seed
        del whole["seed"]
        if across and "clients" in (experiment.partition or {}):
            whole["partition"] = {"clients": experiment.partition["clients"]}  # type: ignore[index]
    whole["local"] = without_numbers(experiment.local).model_dump()
    whole["algorithm"] = _fixed("algorithms", experiment.algorithm)
    whole["transform"] = [_fixed("transforms", entry) for entry in experiment.transform]
    return json.dumps(whole, sort_keys=True)


def _fixed(kind: str, entry: Entry) -> Entry:
    """The entry with its numeric settings left open."""
    builder = find_builder(CATALOGUE[kind], entry["name"], kind)
    arguments = schema(builder, GIVEN.get(kind, ()))
    data = setting_names(builder) if isinstance(builder, type) and is_dataclass(builder) else ()
    calibrated = builder.calibrated_options if isinstance(builder, type) and issubclass(builder, Calibrated) else ()
    found: Entry = {"name": entry["name"]}
    for key, value in entry.items():
        if key in calibrated:
            continue  # set-up makes a number of it
        inner = arguments[key].kind if key in arguments else None
        if key in data:
            found[key] = _ANY
        elif inner and isinstance(value, Mapping):
            found[key] = _structure(build(CATALOGUE[inner], value, where=f"{kind}.{key}"))
        else:
            found[key] = value
    return found


def _structure(thing: Any) -> Any:
    """What something is made of, its numeric settings left open."""
    if not is_dataclass(thing) or isinstance(thing, type):
        return repr(thing)
    data = setting_names(type(thing))
    inner = {f.name: _ANY if f.name in data else _structure(getattr(thing, f.name)) for f in fields(thing)}
    return {"class": f"{type(thing).__module__}:{type(thing).__qualname__}", **inner}


def _partitions(partition: Entry | None) -> list[str]:
    """The names of a partition and of those that it is composed of."""
    if partition is None:
        return []
    parts = partition.get("of", [])
    inside = [p if isinstance(p, Mapping) else {"name": p} for p in parts] if isinstance(parts, list) else []
    return [str(p.get("name")) for p in (partition, *inside)]
