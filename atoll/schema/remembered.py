"""A file checked by what signatures said when they were last read."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from atoll.schema.argument import Argument
from atoll.schema.argument_json import from_json
from atoll.schema.checks import Checks, one_experiment


class _OutsideCodeError(Exception):
    """The file names code at an import path: only its own signature says what it takes."""


@dataclass(frozen=True)
class Remembered:
    """What a file may name in one place, and the arguments of each as JSON."""

    forms: Mapping[str, Mapping[str, Any]]

    @property
    def names(self) -> Collection[str]:
        return self.forms.keys()

    def arguments(self, name: str, at: str) -> dict[str, Argument]:
        if name not in self.forms:
            raise _OutsideCodeError(f"{at}: {name!r}")
        return from_json(self.forms[name])


def check_remembered(signatures: Mapping[str, Any], raw: Any) -> None:
    """Raise one ConfigError with everything that is wrong with a file, unless it names code of the user's."""
    checks = Checks({kind: Remembered(forms) for kind, forms in signatures["kinds"].items()})
    with suppress(_OutsideCodeError):
        checks.experiment(from_json(signatures["experiment"]), one_experiment(raw))
