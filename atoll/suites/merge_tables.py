"""Experiments in part, put on top of each other."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from atoll.errors import ConfigError
from atoll.experiment import did_you_mean


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merge key by key; one with another `name` replaces what was there. Lists and plain values are replaced.

    >>> merged({"algorithm": {"name": "fedavg", "lr": 0.1}}, {"algorithm": {"lr": 0.2}})
    {'algorithm': {'name': 'fedavg', 'lr': 0.2}}
    >>> merged({"algorithm": {"name": "fedavg", "lr": 0.1}}, {"algorithm": {"name": "fedprox", "mu": 1}})
    {'algorithm': {'name': 'fedprox', 'mu': 1}}
    """
    result = copy.deepcopy(dict(below))
    for key, value in above.items():
        result[key] = _joined(result.get(key), copy.deepcopy(value))
    return result


def _joined(there: Any, value: Any) -> Any:
    if not isinstance(there, Mapping) and not isinstance(value, Mapping):
        return value
    old, new = _table(there), _table(value)
    if old is None or new is None:
        return value
    other = "name" in new and "name" in old and new["name"] != old["name"]
    return new if other else merged(old, new)


def _table(value: Any) -> dict[str, Any] | None:
    """A bare name is the table that it stands for."""
    if isinstance(value, str):
        return {"name": value}
    return dict(value) if isinstance(value, Mapping) else None


def filled(part: Any, numbers: Mapping[str, float], at: str) -> Any:
    """An experiment with numbers in place of the words that name them.

    >>> filled({"reducer": {"name": "krum", "byzantine": "$f"}}, {"f": 6}, "a cell")
    {'reducer': {'name': 'krum', 'byzantine': 6}}
    """
    if isinstance(part, Mapping):
        return {key: filled(value, numbers, at) for key, value in part.items()}
    if isinstance(part, list):
        return [filled(value, numbers, at) for value in part]
    if not isinstance(part, str) or not part.startswith("$"):
        return part
    if part[1:] not in numbers:
        guess = did_you_mean(part[1:], numbers)
        known = f" Known there: {', '.join(numbers)}." if numbers else ""
        raise ConfigError(f"{at}: no value of it says let.{part[1:]}, which {part!r} asks for.{guess}{known}")
    return numbers[part[1:]]
