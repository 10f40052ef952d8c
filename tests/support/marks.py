"""Which parameters of a test are slow: they run in `make test-slow`, the others in `make test`."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """One set of parameters."""
    return pytest.param(*values, marks=pytest.mark.slow)


def slow_among(kinds: Iterable[str], *names: str) -> list[Any]:
    """The kinds as parameters; those named here are slow."""
    known = list(kinds)
    assert set(names) <= set(known), f"{names} are not all in {known}"
    return [slow(kind) if kind in names else kind for kind in known]


def slow_but(kinds: Iterable[str], *quick: str) -> list[Any]:
    """The kinds as parameters; all but those named here are slow."""
    known = list(kinds)
    assert set(quick) <= set(known), f"{quick} are not all in {known}"
    return [kind if kind in quick else slow(kind) for kind in known]
