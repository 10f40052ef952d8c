"""Values in nested tables: configurations, lines of a record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def find(tree: Any, *path: str) -> Any:
    """What stands at a path of keys, or None."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def has(tree: Any, path: Sequence[str]) -> bool:
    """Does anything stand at a path of keys, even None?"""
    parent = find(tree, *path[:-1])
    return isinstance(parent, Mapping) and path[-1] in parent


def number_or_nan(value: Any) -> float:
    """The number; NaN for what is none, as null in a record is."""
    return float(value) if isinstance(value, int | float) else math.nan
