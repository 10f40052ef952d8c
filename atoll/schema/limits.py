"""How large and how small a number in a file may be, where its own type does not say."""

import types
from collections.abc import Iterator, Mapping
from math import inf
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import annotated_types as at

from atoll.errors import ConfigError
from atoll.schema.type_names import own_marks, short_toml

MOST = 10**9  # clients, epochs, rows, widths: of anything that is counted
WHOLE = 2**63 - 1  # other whole numbers, such as seeds: what 64 bits hold
LARGEST, SMALLEST = 3.4e38, 1.2e-38  # what float32, in which settings travel, still tells from infinity and from 0
DEEPEST = 20  # tables in tables

T = TypeVar("T")
_UNIONS = (Union, types.UnionType)


def beyond(annotation: Any, value: Any, where: str) -> list[tuple[str, str]]:
    """Every number in the value that is out of all bounds: where it is, and what is wrong with it."""
    kinds = dict(_number_types(annotation))
    return [(place, what) for place, n in _numbers(value, where) if (what := _excess(kinds, n))]


def _excess(kinds: dict[type, bool], number: float) -> str | None:
    """What is wrong with a number; `kinds`: the types of number that it may be, and whether they count something."""
    if number in (inf, -inf):
        return None  # is said in other words
    most = LARGEST if float in kinds else MOST if kinds.get(int) else WHOLE
    if kinds and abs(number) > most:
        bound = f"at most {most:,}" if number > 0 else f"at least {-most:,}"
        return f"must be {bound} (got {short_toml(number)}), which is more than any run can use."
    tiny = float in kinds and 0 < abs(number) < SMALLEST
    return f"must be further from 0 (got {short_toml(number)}): {SMALLEST} is the least that counts." if tiny else None


def _number_types(annotation: Any, marks: tuple[Any, ...] = ()) -> Iterator[tuple[type, bool]]:
    """The number types in an annotation without an upper bound of their own: does a lower one say that they count?"""
    if get_origin(annotation) is Annotated:
        yield from _number_types(get_args(annotation)[0], (*marks, *own_marks(annotation)))
    elif annotation in (int, float):
        if not any(isinstance(m, at.Le | at.Lt) for m in marks):
            yield annotation, any(isinstance(m, at.Ge | at.Gt) for m in marks)
    elif get_origin(annotation) is not None:
        inherited = marks if get_origin(annotation) in _UNIONS else ()
        for inner in get_args(annotation):
            yield from _number_types(inner, inherited)


def _numbers(value: Any, where: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield where, value
    elif isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            yield from _numbers(inner, f"{where}.{key}")


def shallow(table: T, where: str) -> T:
    """A table that is not nested too deeply, found without recursion, which has an end of its own."""
    level: list[Any] = [table]
    for _ in range(DEEPEST):
        inner = [x.values() if isinstance(x, Mapping) else x for x in level if isinstance(x, Mapping | list | tuple)]
        level = [y for x in inner for y in x]
    if level:
        raise ConfigError(nested_too_deep(where))
    return table


def nested_too_deep(where: str) -> str:
    return f"{where}: has tables or lists nested deeper than {DEEPEST}. None needs more than 5: see to its brackets."
