"""Numeric settings: bounds in the type, values as data.

A field of one of these types may be a number or a schedule over rounds. Engines hand the values to the hooks as
0-dim tensors (`extract`, `inject`), so a schedule needs no new capture and a sweep is one more stacked axis.
"""

from collections.abc import Hashable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Annotated, Any, Protocol, TypeVar, get_type_hints, runtime_checkable

import torch
from pydantic import Field

from atoll.core.transform import Calibrated
from atoll.schedules import History, Schedule
from atoll.tree import Tree


@dataclass(frozen=True)
class Scheduled:
    """Marks a type whose values may follow a schedule."""


Positive = Annotated[float, Field(gt=0), Scheduled()]
Unsigned = Annotated[float, Field(ge=0), Scheduled()]
Share = Annotated[float, Field(gt=0, le=1), Scheduled()]
Fraction = Annotated[float, Field(ge=0, lt=1), Scheduled()]


@dataclass(frozen=True)
class SetByBind:
    """Marks a number that `bind` finds; nobody types it in."""


@dataclass(frozen=True)
class ServerSide:
    """Marks what the server alone looks at: no part of the program that clients run."""


Derived = Annotated[float, Scheduled(), SetByBind()]

T = TypeVar("T")
_names: dict[type, tuple[str, ...]] = {}


def names(cls: type) -> tuple[str, ...]:
    """The fields of a dataclass that hold numeric settings."""
    if cls not in _names:
        hints = get_type_hints(cls, include_extras=True)
        marked = [f.name for f in fields(cls) if any(isinstance(m, Scheduled) for m in _metadata(hints[f.name]))]
        _names[cls] = tuple(marked)
    return _names[cls]


def extract(thing: Any) -> Tree:
    """The settings of a dataclass, and of the dataclasses and sequences in it, as a tree of 0-dim tensors."""
    if isinstance(thing, list | tuple):
        found = {str(i): extract(x) for i, x in enumerate(thing)}
        return {k: v for k, v in found.items() if v}
    if not is_dataclass(thing) or isinstance(thing, type):
        return {}
    own = {n: torch.as_tensor(getattr(thing, n), dtype=torch.float32) for n in names(type(thing))}
    inner = {f.name: extract(getattr(thing, f.name)) for f in fields(thing) if f.name not in own}
    return {**own, **{k: v for k, v in inner.items() if v}}


def inject(thing: T, settings: Tree) -> T:
    """The same dataclass with these values for its settings."""
    if not settings:
        return thing
    if isinstance(thing, list | tuple):
        return type(thing)(inject(x, settings.get(str(i), {})) for i, x in enumerate(thing))  # type: ignore[return-value]
    values = {k: inject(getattr(thing, k), v) if isinstance(v, dict) else v for k, v in settings.items()}
    return replace(thing, **values)  # type: ignore[type-var]


def _metadata(hint: Any) -> tuple[Any, ...]:
    return tuple(getattr(hint, "__metadata__", ()))


def resolve(thing: T, round: int, history: History) -> T:
    """The same dataclass with every schedule replaced by its number in this round; itself, if it has none."""
    if isinstance(thing, list | tuple):
        parts = [resolve(x, round, history) for x in thing]
        same = all(new is old for new, old in zip(parts, thing, strict=True))
        return thing if same else type(thing)(parts)  # type: ignore[return-value]
    if not is_dataclass(thing) or isinstance(thing, type):
        return thing
    changed = {}
    for f in fields(thing):
        old = getattr(thing, f.name)
        new = (
            old.value(round, history)
            if f.name in names(type(thing)) and isinstance(old, Schedule)
            else resolve(old, round, history)
        )
        if new is not old:
            changed[f.name] = new
    return replace(thing, **changed) if changed else thing  # type: ignore[return-value]


def schedules(thing: Any) -> list[Schedule]:
    """Every schedule in a dataclass, and in the dataclasses and sequences in it."""
    if isinstance(thing, list | tuple):
        return [s for x in thing for s in schedules(x)]
    if not is_dataclass(thing) or isinstance(thing, type):
        return []
    own = [getattr(thing, n) for n in names(type(thing))]
    inner = [s for f in fields(thing) if f.name not in names(type(thing)) for s in schedules(getattr(thing, f.name))]
    return [s for s in own if isinstance(s, Schedule)] + inner


@runtime_checkable
class Structured(Protocol):
    """A value that says itself what is left of it without its numbers."""

    def structure(self) -> Hashable:
        """Equal for values that are the same program up to numbers that come as data."""
        ...


def structure(thing: Any) -> Hashable:
    """What is left of a dataclass without its numeric settings, which are data: equal for one and the same program."""
    if isinstance(thing, Structured):
        return thing.structure()
    if is_dataclass(thing) and not isinstance(thing, type):
        calibrated = thing.calibrated_options if isinstance(thing, Calibrated) else ()  # become a number at set-up
        numbers = (*names(type(thing)), *calibrated)
        hints = get_type_hints(type(thing), include_extras=True)
        own = [f.name for f in fields(thing) if not any(isinstance(m, ServerSide) for m in _metadata(hints[f.name]))]
        rest = ((name, structure(getattr(thing, name))) for name in own if name not in numbers)
        return type(thing), tuple(rest)
    if isinstance(thing, list | tuple):
        return tuple(structure(x) for x in thing)
    if isinstance(thing, dict):
        return tuple((k, structure(v)) for k, v in thing.items())
    return thing if isinstance(thing, str | int | float | None) else id(thing)
