"""What there is to choose from, read from signatures and docstrings."""

import inspect
from dataclasses import dataclass

from pydantic.fields import FieldInfo

from atoll.core import Reducer
from atoll.experiment.catalogue import CATALOGUE, GIVEN
from atoll.experiment.signatures import Builder, schema
from atoll.schema import Argument, marks, short_toml


@dataclass(frozen=True)
class Option:
    """One option of an item."""

    name: str
    type: str  # in words
    default: str | None  # as a file writes it; None where there is none
    required: bool
    meaning: str | None = None

    def __str__(self) -> str:
        unset = " (required)" if self.required else " (optional)"
        value = unset if self.default is None else f" = {self.default}"
        return f"{self.name}{value}: {self.type}" + (f"; {self.meaning}" if self.meaning else "")


@dataclass(frozen=True)
class Item:
    """One name that a file may use."""

    name: str
    meaning: str
    options: list[Option]
    assumes: str = ""  # of a defence: when it holds, and when it breaks

    def lines(self) -> list[str]:
        """What follows its meaning in a list."""
        return ([f"Assumes: {self.assumes}."] if self.assumes else []) + [str(option) for option in self.options]


def describe(kind: str) -> list[Item]:
    """Everything of a kind.

    >>> print(*describe("optimizers")[0].options, sep="; ")
    momentum = 0.0: number >= 0 and < 1, or a schedule; nesterov = false: true or false; \
weight_decay = 0.0: number >= 0, or a schedule
    """
    given = GIVEN.get(kind, frozenset())
    return [
        Item(name, summary_line(b), [_option(a) for a in schema(b, given).values()], _assumption(b))
        for name, b in CATALOGUE[kind].items()
    ]


def _assumption(builder: Builder) -> str:
    return builder.assumes if isinstance(builder, type) and issubclass(builder, Reducer) else ""


def summary_line(builder: Builder) -> str:
    """The first line of what the builder says about itself."""
    return (inspect.getdoc(builder) or "").partition("\n")[0]


def _option(argument: Argument) -> Option:
    about = next((m.description for m in marks(argument.type) if isinstance(m, FieldInfo) and m.description), None)
    return Option(argument.name, argument.words, _default(argument), argument.required, about)


def _default(argument: Argument) -> str | None:
    if argument.required or argument.default is None:
        return None
    return short_toml(argument.default)
