"""Against the paper: the comparison that `atoll.results.against` works out, as a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol, cast

from atoll.report.suite import words
from atoll.results import Results


class Compared(Protocol):
    """One published cell beside ours, in the shown scale."""

    name: str
    block: str
    ours_last: Any  # mean, std, n; None without runs
    ours_best: Any
    theirs: Any  # mean, std; None where nothing was published
    difference: float | None
    in_theirs: float | None
    in_ours: float | None
    verdict: str
    why: str
    quirk: str | None


@dataclass(frozen=True)
class Shown:
    """One line as text."""

    name: str
    numbers: tuple[str, ...]
    verdict: str
    kind: str  # agrees, differs or other: for the colour
    why: str
    quirk: str | None


@dataclass(frozen=True)
class Comparison:
    """What the section shows."""

    finding: str
    told: str
    rows: tuple[Shown, ...]


def comparison(results: Results) -> Comparison | None:
    """The comparison with the suite's published table; None where there is none."""
    if results.reference is None or find_spec("atoll.results.against") is None:
        return None
    found = cast(Sequence[Compared], import_module("atoll.results.against").rows(results))
    return shown(results, found)


def shown(results: Results, found: Sequence[Compared]) -> Comparison | None:
    """These rows as text."""
    if not found:
        return None
    plain = [row for row in found if row.quirk is None]
    counts = Counter(row.verdict for row in plain)
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    named = f"the published table {results.reference}" if results.reference else "the published table"
    finding = f"Against {named}: of {words.counted(len(plain), 'cell')} {said}." if plain else ""
    told = (
        f"Each cell of {named} beside ours. Whether a paper reports its last or its best round is often not said, so "
        "both are shown. Lines in italics repeat a quirk of the published code, to see what difference it explains."
    )
    return Comparison(finding, told, tuple(_shown(row) for row in found))


def _shown(row: Compared) -> Shown:
    numbers = (
        *map(_score, (row.theirs, row.ours_last, row.ours_best)),
        _signed(row.difference, 2),
        _signed(row.in_theirs, 1),
        _signed(row.in_ours, 1),
    )
    kind = next((word for word in ("agrees", "differs") if row.verdict.startswith(word)), "other")
    return Shown(row.name, numbers, row.verdict, kind, row.why, row.quirk)


def _score(found: Any) -> str:
    if found is None:
        return words.MISSING
    std = getattr(found, "std", None)
    spread = f" ± {words.number(std, 2)}" if std is not None and math.isfinite(std) else ""
    return f"{words.number(found.mean, 2)}{spread}"


def _signed(value: float | None, places: int) -> str:
    return words.MISSING if value is None or not math.isfinite(value) else words.number(value, places, "+")
