"""The same thing with another setting."""

from __future__ import annotations

from dataclasses import is_dataclass, replace
from typing import TypeVar

from atoll.errors import ConformanceError

T = TypeVar("T")


def with_setting(thing: T, **settings: object) -> T:
    """A copy of a frozen dataclass with other settings."""
    if not is_dataclass(thing) or isinstance(thing, type):
        raise ConformanceError(
            f"is a frozen dataclass: found {type(thing).__name__}. The kit tries it with other settings: derive it as "
            "CONTRIBUTING.md shows."
        )
    return replace(thing, **settings)  # type: ignore[return-value]
