"""Anything that a file can name, put through the checks of what it is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from atoll.core import Attack, Protocol, Reducer, Round, Transform
from atoll.data import Dataset
from atoll.errors import AtollError, ConfigError, ConformanceError
from atoll.schedules import Schedule
from atoll.testing.algorithm import check_algorithm
from atoll.testing.attack import check_attack
from atoll.testing.model import check_model
from atoll.testing.partition import check_partition
from atoll.testing.protocol import check_protocol
from atoll.testing.reducer import check_reducer
from atoll.testing.round import check_round
from atoll.testing.sampler import check_sampler
from atoll.testing.transform import check_transform

Builder = Callable[..., Any]
_ROUNDS = 20
_KINDS = (
    "an algorithm, a transform, a reducer, a round, a schedule, a partition, a cohort, a protocol, an attack or a model"
)


def check_anything(builder: Builder, options: Mapping[str, Any]) -> tuple[str, list[str]]:
    """What it is, and the names of the checks that it passes. `options` are those that a file would give it."""
    names = _arguments(builder)
    if "task" in names:
        return "an algorithm", check_algorithm(builder, **options)
    if {"inputs", "outputs"} <= names:
        return "a model", check_model(lambda inputs, outputs: builder(inputs=inputs, outputs=outputs, **options))
    made = _built(builder, options)
    if isinstance(made, nn.Module):
        return "a model", check_model(lambda inputs, outputs: builder(**options))
    return _tried(made)


def _tried(made: Any) -> tuple[str, list[str]]:
    if isinstance(made, Transform):
        return "a transform", check_transform(made)
    if isinstance(made, Attack):
        return "an attack", check_attack(made)
    if isinstance(made, Reducer):
        return "a reducer", check_reducer(made)
    if isinstance(made, Round):
        return "a round", check_round(made)
    if isinstance(made, Protocol):
        return "a protocol", check_protocol(made)
    if isinstance(made, Schedule):
        return "a schedule", _check_schedule(made)
    if callable(getattr(made, "sample", None)):
        return "a cohort", check_sampler(made)
    if callable(made):
        return "a partition", check_partition(made, random=None)  # by ward or by date is a partition, too
    if isinstance(made, Dataset):
        raise ConformanceError("is data, which `atoll data show` checks and shows by the same name.")
    raise ConformanceError(
        f"is none of {_KINDS}: {type(made).__name__} derives from none of their contracts. Derive it from "
        "atoll.core.Transform, Reducer, Round, Protocol or Attack, or give it the hooks that CONTRIBUTING.md shows."
    )


def _check_schedule(schedule: Schedule) -> list[str]:
    line = dict.fromkeys(schedule.metrics(), 1.0)
    for number in range(_ROUNDS):
        value = schedule.value(number, [line] * number)
        if not isinstance(value, float | int) or not value >= 0:
            raise ConformanceError(f"gives a number of at least 0 for every round: {value!r} in round {number}.")
    return [f"a number for each of {_ROUNDS} rounds"]


def _arguments(builder: Builder) -> set[str]:
    try:
        return set(inspect.signature(builder).parameters)
    except (TypeError, ValueError):
        return set()


def _built(builder: Builder, options: Mapping[str, Any]) -> Any:
    try:
        return builder(**options)
    except AtollError:
        raise
    except TypeError as e:
        raise ConfigError(f"cannot be built: {e}. Give its options with --set, such as --set max_norm=1.0.") from e
    except Exception as e:  # a stranger's code may raise anything
        raise ConformanceError(f"can be built: {type(e).__name__}: {e}") from e
