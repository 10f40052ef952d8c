"""Names of cells: short, readable, and fit to name a folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from atoll.experiment import Experiment, schema
from atoll.report import differing, flatten, short, show

_LONGEST = 80


def labels(axes: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
    """A label for every value of every axis: `mu=0.01`; of a table its name, and what tells it from its namesakes.

    >>> labels({"algorithm": ["fedavg", {"name": "fedprox", "mu": 1}, {"name": "fedprox", "mu": 2}], "seed": [0]})
    {'algorithm': ['fedavg', 'fedprox,mu=1', 'fedprox,mu=2'], 'seed': ['seed=0']}
    """
    words = short(list(axes))
    return {axis: _labels(axis, words[axis], values) for axis, values in axes.items()}


def names(rows: Sequence[Sequence[str]]) -> list[str]:
    """A name for every cell from the labels of its values; a name that is taken gets a number."""
    unique: list[str] = []
    taken: set[str] = set()
    for row in rows:
        plain = re.sub(r"[^\w.,=+~-]+", "-", ",".join(row)).strip(".-")[:_LONGEST] or "cell"
        name = next(n for n in (plain, *(f"{plain}~{i}" for i in range(2, len(rows) + 2))) if n not in taken)
        taken.add(name)
        unique.append(name)
    return unique


def _labels(axis: str, word: str, values: Sequence[Any]) -> list[str]:
    heads = [_head(axis, word, value) for value in values]
    tables = [flatten({k: v for k, v in x.items() if k != "name"}) if isinstance(x, Mapping) else {} for x in values]
    full = []
    for head, own in zip(heads, tables, strict=True):
        telling = differing([t for t, other in zip(tables, heads, strict=True) if other == head])
        known = short(telling)
        full.append(",".join([head, *(f"{known[key]}={show(own[key])}" for key in telling if key in own)]))
    return [_numbered(full, values, i) for i in range(len(full))]


def _head(axis: str, word: str, value: Any) -> str:
    """What a value is called, as far as it can be said without the other values."""
    if isinstance(value, Mapping):
        name = value.get("name")
        return word if name is None else str(name) if _is_entry(axis) else f"{word}={name}"
    if isinstance(value, list | tuple) and value and all(isinstance(x, Mapping | str) for x in value):
        return "+".join(str(x.get("name", "") if isinstance(x, Mapping) else x) for x in value)
    return str(value) if isinstance(value, str) and _is_entry(axis) else f"{word}={show(value)}"


def _is_entry(axis: str) -> bool:
    """Is the value something with a name of its own, such as an algorithm?"""
    fields = schema(Experiment)
    named = axis in fields and fields[axis].kind is not None
    return named or axis.rpartition(".")[2] in ("name", "model", "optimizer")


def _numbered(full: Sequence[str], values: Sequence[Any], i: int) -> str:
    """A label that another value has too gets the number of its value."""
    others = [v for v, label in zip(values, full, strict=True) if label == full[i]]
    return full[i] if all(v == values[i] for v in others) else f"{full[i]}~{i + 1}"
