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
Proportion = Annotated[float, Field(ge=0, le=1), Scheduled()]


@dataclass(frozen=True)
class SetByBind:
    """Marks a number that `bind` finds; nobody types it in."""


@dataclass(frozen=True)
class ServerSide:
    """Marks what the server alone looks at: no part of the program that clients run."""


Derived = Annotated[float, Scheduled(), SetByBind()]

T = TypeVar("T")
_names: dict[type, tuple[str, ...]] = {}


def setting_names(cls: type) -> tuple[str, ...]:
    """The fields of a dataclass that hold numeric settings."""
    if cls not in _names:
        hints = get_type_hints(cls, include_extras=True)
        marked = [f.name for f in fields(cls) if any(isinstance(m, Scheduled) for m in _metadata(hints[f.name]))]
        _names[cls] = tuple(marked)
    return _names[cls]


def extract(node: Any) -> Tree:
    """The settings of a dataclass, and of the dataclasses and sequences in it, as a tree of 0-dim tensors."""
    if isinstance(node, list | tuple):
        items = {str(i): extract(x) for i, x in enumerate(node)}
        return {k: v for k, v in items.items() if v}
    if not is_dataclass(node) or isinstance(node, type):
        return {}
    own = {n: torch.as_tensor(getattr(node, n), dtype=torch.float32) for n in setting_names(type(node))}
    inner = {f.name: extract(getattr(node, f.name)) for f in fields(node) if f.name not in own}
    return {**own, **{k: v for k, v in inner.items() if v}}


def inject(node: T, settings: Tree) -> T:
    """The same dataclass with these values for its settings."""
    if not settings:
        return node
    if isinstance(node, list | tuple):
        return type(node)(inject(x, settings.get(str(i), {})) for i, x in enumerate(node))  # type: ignore[return-value]
    values = {k: inject(getattr(node, k), v) if isinstance(v, dict) else v for k, v in settings.items()}
    return replace(node, **values)  # type: ignore[type-var]


def _metadata(hint: Any) -> tuple[Any, ...]:
    return tuple(getattr(hint, "__metadata__", ()))


def resolve(node: T, round: int, history: History) -> T:
    """The same dataclass with every schedule replaced by its number in this round; itself, if it has none."""
    if isinstance(node, list | tuple):
        parts = [resolve(x, round, history) for x in node]
        same = all(new is old for new, old in zip(parts, node, strict=True))
        return node if same else type(node)(parts)  # type: ignore[return-value]
    if not is_dataclass(node) or isinstance(node, type):
        return node
    changed = {}
    for f in fields(node):
        old = getattr(node, f.name)
        new = (
            old.value(round, history)
            if f.name in setting_names(type(node)) and isinstance(old, Schedule)
            else resolve(old, round, history)
        )
        if new is not old:
            changed[f.name] = new
    return replace(node, **changed) if changed else node  # type: ignore[return-value]


def schedules_in(node: Any) -> list[Schedule]:
    """Every schedule in a dataclass, and in the dataclasses and sequences in it."""
    if isinstance(node, list | tuple):
        return [s for x in node for s in schedules_in(x)]
    if not is_dataclass(node) or isinstance(node, type):
        return []
    marked = setting_names(type(node))
    own = [getattr(node, name) for name in marked]
    inner = [s for f in fields(node) if f.name not in marked for s in schedules_in(getattr(node, f.name))]
    return [s for s in own if isinstance(s, Schedule)] + inner


@runtime_checkable
class Structured(Protocol):
    """A value that says itself what is left of it without its numbers."""

    def structure(self) -> Hashable:
        """Equal for values that are the same program up to numbers that come as data."""
        ...


def program_structure(node: Any) -> Hashable:
    """What is left of a dataclass without its numeric settings, which are data: equal for one and the same program."""
    if isinstance(node, Structured):
        return node.structure()
    if is_dataclass(node) and not isinstance(node, type):
        calibrated = node.calibrated_options if isinstance(node, Calibrated) else ()  # become a number at set-up
        numbers = (*setting_names(type(node)), *calibrated)
        hints = get_type_hints(type(node), include_extras=True)
        own = [f.name for f in fields(node) if not any(isinstance(m, ServerSide) for m in _metadata(hints[f.name]))]
        rest = ((name, program_structure(getattr(node, name))) for name in own if name not in numbers)
        return type(node), tuple(rest)
    if isinstance(node, list | tuple):
        return tuple(program_structure(x) for x in node)
    if isinstance(node, dict):
        return tuple((k, program_structure(v)) for k, v in node.items())
    return node if isinstance(node, str | int | float | None) else id(node)
