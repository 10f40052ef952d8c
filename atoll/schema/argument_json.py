"""Arguments as JSON, and back: what signatures said can be kept, and read without what they are of.

>>> to_json({"lr": Argument("lr", Annotated[float, Field(gt=0)], 0.1)})
{'lr': {'type': {'marked': 'float', 'gt': 0}, 'default': 0.1}}
"""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types as at
from pydantic import Field
from pydantic.fields import FieldInfo

from atoll.schema.argument import Argument
from atoll.schema.type_names import is_union, own_marks

_PLAIN = {
    "any": Any,
    "bool": bool,
    "dict": dict,
    "float": float,
    "int": int,
    "null": type(None),
    "path": Path,
    "str": str,
    "...": ...,
}
_GENERIC = {"list": list, "tuple": tuple, "dict_of": dict}
_BOUNDS: dict[type, str] = {
    **{at.Gt: "gt", at.Ge: "ge", at.Lt: "lt", at.Le: "le", at.MultipleOf: "multiple_of"},
    **{at.MinLen: "min_length", at.MaxLen: "max_length"},
}


def to_json(arguments: Mapping[str, Argument]) -> dict[str, Any]:
    """By name."""
    return {name: _form(argument) for name, argument in arguments.items()}


def from_json(forms: Mapping[str, Any]) -> dict[str, Argument]:
    """What `to_json` was given, up to marks that say nothing about a value."""
    return {name: _argument(name, dict(form)) for name, form in forms.items()}


def _form(argument: Argument) -> dict[str, Any]:
    form: dict[str, Any] = {"type": _type_form(argument.type)}
    if not argument.required:
        form["default"] = argument.default
    if argument.table is not None:
        form["table"] = to_json(argument.table)
    flags: dict[str, Any] = {"kind": argument.kind, "many": argument.many, "lists": argument.lists}
    flags["scheduled"] = argument.scheduled
    return form | {name: flag for name, flag in flags.items() if flag}


def _argument(name: str, form: dict[str, Any]) -> Argument:
    if "table" in form:
        form["table"] = from_json(form["table"])
    return Argument(name, _type(form.pop("type")), **form)


def _type_form(annotation: Any) -> Any:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return {"marked": _type_form(args[0]), **_bounds(annotation)}
    if origin is Literal:
        return {"literal": list(args)}
    if is_union(annotation):
        return {"any_of": [_type_form(x) for x in args]}
    if origin is not None:
        return {next(k for k, cls in _GENERIC.items() if cls is origin): [_type_form(x) for x in args]}
    for name, plain in _PLAIN.items():
        if plain is annotation:
            return name
    raise TypeError(f"{annotation} has no form in JSON")


def _type(form: Any) -> Any:
    if isinstance(form, str):
        return _PLAIN[form]
    (name, inner), *bounds = form.items()
    if name == "marked":
        return Annotated[_type(inner), Field(**dict(bounds))]
    if name == "literal":
        return Literal[tuple(inner)]
    args = tuple(_type(x) for x in inner)
    return reduce(or_, args) if name == "any_of" else _GENERIC[name][args]  # type: ignore[index]


def _bounds(annotation: Any) -> dict[str, Any]:
    found = {_BOUNDS[type(m)]: getattr(m, _BOUNDS[type(m)]) for m in own_marks(annotation) if type(m) in _BOUNDS}
    about = [m.description for m in own_marks(annotation) if isinstance(m, FieldInfo) and m.description]
    return {**found, **({"description": about[0]} if about else {})}
