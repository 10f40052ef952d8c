"""Types and values as people read them."""

import types
from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as at
from pydantic.fields import FieldInfo

from atoll.schema import toml

_BOUNDS = {at.Gt: (">", "gt"), at.Ge: (">=", "ge"), at.Lt: ("<", "lt"), at.Le: ("<=", "le")}
_PLAIN = {float: "number", int: "whole number", bool: "true or false", str: "text", dict: "table", Any: "anything"}


def bare(annotation: Any) -> Any:
    """The type without its marks and without None.

    >>> bare(Annotated[int, at.Ge(1)] | None)
    <class 'int'>
    """
    if get_origin(annotation) is Annotated:
        return bare(get_args(annotation)[0])
    if is_union(annotation):
        left = [x for x in get_args(annotation) if x is not type(None)]
        return bare(left[0]) if len(left) == 1 else annotation
    return annotation


def marks(annotation: Any) -> Iterator[Any]:
    """What is said about a type: its bounds, markers and descriptions, also behind `| None`."""
    if get_origin(annotation) is Annotated:
        yield from own_marks(annotation)
        yield from marks(get_args(annotation)[0])
    elif is_union(annotation):
        left = [x for x in get_args(annotation) if x is not type(None)]
        yield from marks(left[0]) if len(left) == 1 else ()


def own_marks(annotation: Any) -> Iterator[Any]:
    """What an Annotated says itself."""
    for mark in annotation.__metadata__:
        yield from (mark, *mark.metadata) if isinstance(mark, FieldInfo) else (mark,)


def is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def has_choice(annotation: Any) -> bool:
    """Could a value be of one type or of another, here or further in?"""
    inner = bare(annotation)
    return is_union(inner) or any(has_choice(x) for x in get_args(inner) if not isinstance(x, str))


def words(annotation: Any, many: bool = False) -> str:
    """A type, for people.

    >>> words(Annotated[float, at.Gt(0)]), words(list[int]), words(Literal["I", "II"] | None)
    ('number > 0', 'list of whole numbers', "'I' or 'II'")
    """
    inner = bare(annotation)
    origin, args = get_origin(inner), get_args(inner)
    if is_union(inner):
        return " or ".join(dict.fromkeys(words(x, many) for x in args if x is not type(None)))
    if origin is Literal:
        return _either([repr(x) if isinstance(x, str) else toml.inline(x) for x in args])
    if origin in (list, tuple) and args:
        return f"{'lists' if many else 'list'} of {_length(annotation)}{words(args[0], many=True)}"
    if isinstance(inner, type) and issubclass(inner, PurePath):
        return "paths" if many else "path"
    name = _PLAIN.get(origin or inner, getattr(inner, "__name__", str(inner)))
    return (f"{name}s" if many and name.endswith("r") else name) + _bounds(annotation)


def sentence(annotation: Any) -> str:
    """A type after "must be"."""
    said = words(annotation)
    return f"a {said}" if said.startswith(("number", "whole", "list", "table", "path")) else said


def short_toml(value: Any) -> str:
    """A value as it stands in a file, cut to a readable length."""
    text = "nothing" if value is None else toml.inline(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _bounds(annotation: Any) -> str:
    found = [
        f"{_BOUNDS[type(m)][0]} {getattr(m, _BOUNDS[type(m)][1])}" for m in marks(annotation) if type(m) in _BOUNDS
    ]
    return f" {' and '.join(found)}" if found else ""


def _length(annotation: Any) -> str:
    """How many items a list must have, if the type says so."""
    given = {type(m): m for m in marks(annotation)}
    low, high = given.get(at.MinLen), given.get(at.MaxLen)
    if low and high and low.min_length == high.max_length:
        return f"{low.min_length} "
    return f"at least {low.min_length} " if low and low.min_length else ""


def _either(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
