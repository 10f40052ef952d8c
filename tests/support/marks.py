"""Which parameters of a test are slow."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(kinds: Iterable[str], *quick: str) -> list[Any]:
    """The kinds as parameters: those named here run in `make test`, the others in `make test-slow`."""
    names = list(kinds)
    unknown = set(quick) - set(names)
    assert not unknown, f"{sorted(unknown)} is none of {names}"
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]
