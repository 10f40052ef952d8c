"""A builder's signature is its schema: which arguments a file may give, of which type, with which default."""

import inspect
import json
import math
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache, cached_property
from pathlib import PurePath
from typing import Any, get_origin

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from atoll.algorithms import Optimizer
from atoll.core import Scheduled, SecondModel, SetByBind
from atoll.errors import ConfigError
from atoll.experiment.type_names import bare, marks, words

Builder = Callable[..., Any]

_STRICT = ConfigDict(strict=True, allow_inf_nan=False)
_ENTRIES = {Optimizer: "optimizers", SecondModel: "models"}  # what a signature calls it -> the dict it is taken from
_REQUIRED: Any = object()


@dataclass(frozen=True)
class Of:
    """Marks an argument that is an entry of one of the catalogue's dicts, or a list of entries."""

    kind: str


@dataclass(frozen=True, eq=False)
class Argument:
    """One argument of a builder that a file may give."""

    name: str
    type: Any
    default: Any = _REQUIRED

    @property
    def required(self) -> bool:
        return self.default is _REQUIRED

    @cached_property
    def kind(self) -> str | None:
        """The dict of the catalogue that this is an entry of, if it is one."""
        named = next((m.kind for m in marks(self.type) if isinstance(m, Of)), None)
        return named or next((kind for cls, kind in _ENTRIES.items() if bare(self.type) is cls), None)

    @cached_property
    def many(self) -> bool:
        return get_origin(bare(self.type)) is list

    @cached_property
    def scheduled(self) -> bool:
        """May a schedule stand in place of the number? Only where engines look for one (core/settings.py)."""
        return any(isinstance(m, Scheduled) for m in getattr(self.type, "__metadata__", ()))

    @cached_property
    def table(self) -> type[BaseModel] | None:
        """The schema of a plain table, if it is one."""
        inner = bare(self.type)
        return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """Reads one value, strictly."""
        return TypeAdapter(self.type, config=_STRICT)

    @property
    def usable(self) -> bool:
        """Could a file give this at all?"""
        if self.kind or self.table:
            return True
        try:
            return self.adapter is not None
        except (PydanticSchemaGenerationError, PydanticUserError):
            return False

    def read(self, value: Any) -> Any:
        """The value as the builder takes it; pydantic's ValidationError or a TypeError if it is none."""
        # Files hold JSON's types: in this mode a list may become a tuple and text a path, and nothing else is cast.
        return self.adapter.validate_json(json.dumps(value, default=_plain))

    def clean(self, value: Any) -> Any:
        """The value as a file has it: 1 becomes 1.0 where a number is wanted, a tuple a list."""
        return self.adapter.dump_python(self.read(value), mode="json")

    @cached_property
    def words(self) -> str:
        """What it takes, for people."""
        if self.kind:
            one = self.kind.removesuffix("es" if self.kind == "losses" else "s")
            return f"list of {self.kind}" if self.many else f"{'an' if one[0] in 'aeiou' else 'a'} {one}"
        return "a table" if self.table else words(self.type) + (", or a schedule" if self.scheduled else "")


def schema(builder: Builder, given: Collection[str] = ()) -> dict[str, Argument]:
    """The arguments that a file may give: not those `given` by the program, not derived ones, not private ones.

    >>> from atoll.transforms import TRANSFORMS
    >>> [a.words for a in schema(TRANSFORMS["clip_l2"]).values()]
    ['number > 0, or a schedule']
    """
    return _schema(builder, frozenset(given))


@cache
def _schema(builder: Builder, given: frozenset[str]) -> dict[str, Argument]:
    found = {a.name: a for a in _arguments(builder) if a.name not in given and a.name[0] != "_" and not _derived(a)}
    for argument in found.values():
        if argument.required and not argument.usable:
            raise ConfigError(
                f"{builder.__name__} asks for {argument.name!r} ({words(argument.type)}), which a file cannot give. "
                "Use a number, text, a choice or a list of these, or give it a default."
            )
    return {name: a for name, a in found.items() if a.usable}


def _arguments(builder: Builder) -> list[Argument]:
    if isinstance(builder, type) and issubclass(builder, BaseModel):
        known = builder.model_fields.items()
        return [
            Argument(
                n, f.rebuild_annotation(), _REQUIRED if f.is_required() else f.get_default(call_default_factory=True)
            )
            for n, f in known
        ]
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    made = {f.name: f.default_factory for f in fields(builder)} if is_dataclass(builder) else {}
    return [
        Argument(p.name, Any if p.annotation is p.empty else p.annotation, _default(p, made.get(p.name, MISSING)))
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
        return _REQUIRED
    found = parameter.default if made is MISSING else made()
    return None if isinstance(found, float) and math.isnan(found) else found  # "not a number" is "not said"


def _derived(argument: Argument) -> bool:
    return any(isinstance(m, SetByBind) for m in marks(argument.type))


def _plain(value: Any) -> Any:
    """What Python has and files have not: paths, and numbers of numpy or torch."""
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no place in a file")
