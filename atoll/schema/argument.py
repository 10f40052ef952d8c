"""One argument that a file may give, as a plain value: what its builder's signature says, without the builder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from atoll.schema.type_names import words

REQUIRED: Any = object()
_ONE = {"losses": "loss", "data": "data set"}  # of these kinds
_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@dataclass(frozen=True, eq=False)
class Argument:
    """One argument of a builder that a file may give."""

    name: str
    type: Any  # of a plain value; Any, for entries and tables
    default: Any = REQUIRED
    kind: str | None = None  # the dict of the catalogue that this is an entry of, if it is one
    many: bool = False  # a list of such entries
    lists: bool = False  # with `many`: a list of such lists
    scheduled: bool = False  # may a schedule stand in place of the number?
    table: "Mapping[str, Argument] | None" = None  # what a plain table holds, if it is one

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """Reads one value, strictly."""
        return TypeAdapter(self.type, config=_STRICT)

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
            one = _ONE.get(self.kind, self.kind.removesuffix("s"))
            plural = f"list of {'lists of ' if self.lists else ''}{self.kind}"
            return plural if self.many else f"{'an' if one[0] in 'aeiou' else 'a'} {one}"
        return "a table" if self.table is not None else words(self.type) + (", or a schedule" if self.scheduled else "")


def _plain(value: Any) -> Any:
    """What Python has and files have not: paths, and numbers of numpy or torch."""
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no place in a file")
