"""Numbers, names and settings as a reader has them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from atoll.records import Cell

MISSING = "—"
ALL_EQUAL = "all equal"  # said of several seeds in place of "± 0", which would claim certainty


def first_up(text: str) -> str:
    """A sentence's beginning; the rest stays as it is."""
    return text[:1].upper() + text[1:]


def row_name(row: Sequence[str]) -> str:
    return " / ".join(row) or "all"


def counted(number: int, word: str, plural: str = "") -> str:
    """A number with its noun.

    >>> counted(1, "cell"), counted(3, "seed")
    ('1 cell', '3 seeds')
    """
    return f"{number:,} {word if number == 1 else plural or word + 's'}"


def listed(names: Iterable[str]) -> str:
    """Names as a sentence has them.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    *most, last = list(names) or [""]
    return f"{', '.join(most)} and {last}" if most else last


def span(numbers: Iterable[int]) -> str:
    """One number, or from the least to the most.

    >>> span([3, 3]), span([2, 5, 3])
    ('3', '2 to 5')
    """
    distinct = sorted(set(numbers))
    return str(distinct[0]) if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"


def settings(chosen: Mapping[str, Any]) -> str:
    """Settings in one line, by the last part of their names where that is enough.

    >>> settings({"algorithm.mu": 0.01, "local.epochs": 5})
    'mu = 0.01, epochs = 5'
    """
    short = [key.rsplit(".", 1)[-1] for key in chosen]
    names = short if len(set(short)) == len(short) else list(chosen)
    return ", ".join(f"{name} = {_value(value)}" for name, value in zip(names, chosen.values(), strict=True))


def number(value: float, places: int, sign: str = "") -> str:
    """A number with a minus as wide as a plus, and no minus before nothing.

    >>> number(-0.004, 2), number(-1.5, 1, "+"), number(float("nan"), 2)
    ('0.00', '−1.5', 'diverged')
    """
    if not math.isfinite(value):
        return "diverged"
    rounded = round(value, places) + 0.0
    return f"{rounded:{sign}.{places}f}".replace("-", "−")


def significant(value: float, sign: str = "") -> str:
    """Three significant digits, never in scientific notation for everyday sizes.

    >>> significant(0.06234), significant(1234.5), significant(2.5e-6)
    ('0.0623', '1,234', '2.50e-06')
    """
    size = abs(value)
    if size == 0 or 1e-3 <= size < 1e6:
        places = 0 if size >= 100 or size == 0 else 2 - math.floor(math.log10(size))
        return f"{value:{sign},.{places}f}"
    return f"{value:{sign}.2e}"


def why(cell: Cell) -> str:
    """Why a cell has no runs, or too few: the first reason and how often.

    >>> why(Cell("b", {"algorithm": "a"}, failed={"seed 0": "out of memory", "seed 1": "out of memory"}))
    'out of memory'
    """
    reasons = list(dict.fromkeys(cell.failed.values()))
    more = f" (and {counted(len(reasons) - 1, 'other reason')})" if len(reasons) > 1 else ""
    return f"{reasons[0]}{more}" if reasons else ""


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
