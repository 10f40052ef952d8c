"""A builder's signature is its schema: which arguments a file may give, of which type, with which default."""

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from atoll.algorithms import Optimizer
from atoll.core import Reducer, Scheduled, SecondModel, SetByBind, Transform
from atoll.data import Dataset
from atoll.errors import ConfigError
from atoll.experiment.catalogue import CATALOGUE
from atoll.rounds import PeerGraph
from atoll.schema import REQUIRED, Argument, bare, marks, words

Builder = Callable[..., Any]

_ENTRIES = {
    Optimizer: "optimizers",
    SecondModel: "models",
    Reducer: "reducers",
    Dataset: "data",
    PeerGraph: "graphs",
    Transform: "transforms",
}  # what a signature calls it -> the dict it is taken from


@dataclass(frozen=True)
class Of:
    """Marks an argument that is an entry of one of the catalogue's dicts, or a list of entries."""

    kind: str


def schema(builder: Builder, given: Collection[str] = ()) -> dict[str, Argument]:
    """The arguments that a file may give: not those `given` by the program, not derived ones, not private ones.

    >>> from atoll.transforms import TRANSFORMS
    >>> [a.words for a in schema(TRANSFORMS["clip_l2"]).values()]
    ['number > 0, or a schedule']
    """
    return _schema(builder, frozenset(given))


@cache
def _schema(builder: Builder, given: frozenset[str]) -> dict[str, Argument]:
    found = {name: (t, d) for name, t, d in _parameters(builder) if name not in given and name[0] != "_"}
    arguments = {name: _argument(name, t, default) for name, (t, default) in found.items() if not _derived(t)}
    for argument in arguments.values():
        if argument.required and not _usable(argument):
            raise ConfigError(
                f"{builder.__name__} asks for {argument.name!r} ({words(argument.type)}), which a file cannot give. "
                "Use a number, text, a choice or a list of these, or give it a default."
            )
    return {name: a for name, a in arguments.items() if _usable(a)}


def _argument(name: str, annotation: Any, default: Any) -> Argument:
    inner = bare(annotation)
    named = next((m.kind for m in marks(annotation) if isinstance(m, Of)), None)
    item = get_args(inner)[0] if get_origin(inner) is list else inner
    lists = get_origin(item) is list
    item = get_args(item)[0] if lists else item
    if kind := named or next((kind for cls, kind in _ENTRIES.items() if (get_origin(item) or item) is cls), None):
        return Argument(name, Any, _as_entry(kind, default), kind, many=get_origin(inner) is list, lists=lists)
    if isinstance(inner, type) and issubclass(inner, BaseModel):
        shown = default.model_dump() if isinstance(default, BaseModel) else default
        return Argument(name, Any, shown, table=schema(inner))
    # only where engines look for one (core/settings.py)
    scheduled = any(isinstance(m, Scheduled) for m in getattr(annotation, "__metadata__", ()))
    return Argument(name, annotation, default, scheduled=scheduled)


def _usable(argument: Argument) -> bool:
    """Could a file give this at all?"""
    if argument.kind or argument.table is not None:
        return True
    try:
        return argument.adapter is not None
    except (PydanticSchemaGenerationError, PydanticUserError):
        return False


def _as_entry(kind: str, default: Any) -> Any:
    """A default as a file would write it: an object is the entry that builds its equal."""
    if default is REQUIRED or default is None or isinstance(default, str | Mapping | list):
        return default
    for name, builder in CATALOGUE[kind].items():
        if not any(a.required for a in schema(builder).values()) and builder() == default:
            return name
    return None


def _parameters(builder: Builder) -> list[tuple[str, Any, Any]]:
    """Names, types and defaults."""
    if isinstance(builder, type) and issubclass(builder, BaseModel):
        known = builder.model_fields.items()
        return [
            (n, f.rebuild_annotation(), REQUIRED if f.is_required() else f.get_default(call_default_factory=True))
            for n, f in known
        ]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    made = {f.name: f.default_factory for f in fields(builder)} if is_dataclass(builder) else {}
    return [
        (p.name, Any if p.annotation is p.empty else p.annotation, _default(p, made.get(p.name, MISSING)))
        for p in _signature(builder).parameters.values()
        if p.kind in named
    ]


def _signature(builder: Builder) -> inspect.Signature:
    try:
        return inspect.signature(builder, eval_str=True)
    except (NameError, TypeError, ValueError, AttributeError) as e:
        name = getattr(builder, "__name__", str(builder))
        raise ConfigError(f"{name} has a signature that cannot be read ({e}). Import its types plainly.") from e


def _default(parameter: inspect.Parameter, made: Any) -> Any:
    if parameter.default is parameter.empty:
        return REQUIRED
    found = parameter.default if made is MISSING else made()
    return None if isinstance(found, float) and math.isnan(found) else found  # "not a number" is "not said"


def _derived(annotation: Any) -> bool:
    return any(isinstance(m, SetByBind) for m in marks(annotation))
