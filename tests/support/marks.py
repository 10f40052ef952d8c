"""Which parameters of a test are slow: they run in `make test-slow`, the others in `make test`."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_among(kinds: Iterable[str], *slow: str) -> list[Any]:
    """The kinds as parameters; those named here are slow."""
    names = list(kinds)
    unknown = set(slow) - set(names)
    assert not unknown, f"{sorted(unknown)} is none of {names}"
    return [pytest.param(name, marks=pytest.mark.slow if name in slow else ()) for name in names]


def slow_but(kinds: Iterable[str], *quick: str) -> list[Any]:
    """The kinds as parameters; all but those named here are slow."""
    names = list(kinds)
    assert not set(quick) - set(names), f"{quick} are not all in {names}"
    return slow_among(names, *set(names) - set(quick))
