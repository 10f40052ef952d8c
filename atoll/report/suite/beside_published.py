"""Against the paper: the comparison that `atoll.records.versus_published` works out, as a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atoll.records import Results, VersusPublished, compare_with_published
from atoll.report.suite import prose


@dataclass(frozen=True)
class Shown:
    """One line as text."""

    name: str
    numbers: tuple[str, ...]
    verdict: str
    why: str
    quirk: str | None

    @property
    def kind(self) -> str:
        """For the colour."""
        return self.verdict if self.verdict in ("agrees", "differs") else "other"


@dataclass(frozen=True)
class PublishedSection:
    """What the section shows: cells that were run, and published ones that were not."""

    finding: str
    told: str
    rows: tuple[Shown, ...]
    others: tuple[Shown, ...]


def comparison(results: Results) -> PublishedSection | None:
    """The comparison with the suite's published table; None where there is none."""
    if results.reference is None and not any(results.references.values()):
        return None
    return shown(results, compare_with_published(results))


def shown(results: Results, found: Sequence[VersusPublished]) -> PublishedSection | None:
    """These rows as text."""
    if not found:
        return None
    ran = [row for row in found if row.ours_last is not None]
    told = (
        f"Each cell of {_named(results)} beside ours. Papers seldom say whether they print the last or the best round, "
        "so the nearer of ours counts. It agrees within a practical margin or two standard errors of "
        'the difference, whichever is larger ("allowed"): where that is wide, agreement says little. Lines in italics '
        "repeat a quirk of the published code, to see what it does."
    )
    lines = {id(row): _shown(row) for row in found}
    others = tuple(lines[id(row)] for row in found if row.ours_last is None)
    return PublishedSection(_finding(results, found), told, tuple(lines[id(row)] for row in ran), others)


def _named(results: Results) -> str:
    names = dict.fromkeys(name for name in (results.reference, *results.references.values()) if name)
    return f"the published table {' and '.join(names)}"


def _finding(results: Results, found: Sequence[VersusPublished]) -> str:
    """How many cells of the paper agree, differ, or could not be compared; a quirk is no cell of the paper."""
    counts = Counter(row.verdict for row in found if row.quirk is None and row.theirs is not None)
    agree, differ = counts.pop("agrees", 0), counts.pop("differs", 0)
    rest = prose.listed(
        f"{count} {'were ' if verdict == 'not run' else ''}{verdict}" for verdict, count in counts.items()
    )
    why = sum(row.explained for row in found)
    said = f"{agree} of {prose.counted(agree + differ, 'cell')} compared agree with {_named(results)}, {differ} differ"
    said += f" ({why} of them agree with a published quirk)." if why else "."
    parts = [prose.first_up(said) if agree + differ else "", f"Of its other cells {rest}." if rest else ""]
    return " ".join(filter(None, parts))


def _shown(row: VersusPublished) -> Shown:
    numbers = (
        *map(_score, (row.theirs, row.ours_last, row.ours_best)),
        _signed(row.difference, 2),
        prose.MISSING if row.allowed is None else prose.number(row.allowed, 2),
        _signed(row.in_theirs, 1),
        _signed(row.in_ours, 1),
    )
    why = prose.first_up(f"{row.why}.") if row.why else ""
    return Shown(row.name, numbers, row.verdict, " ".join(filter(None, (why, _effect(row)))), row.quirk)


def _effect(row: VersusPublished) -> str:
    """What a quirk does to the right method, seed by seed."""
    if row.effect is None:
        return ""
    paired = "paired over" if row.effect.paired else "not paired, over"
    seeds = prose.counted(len(row.effect.seeds), "seed")
    return f"Effect of the quirk at the last round: {_signed_score(row.effect.last)}, {paired} {seeds}."


def _signed_score(found: Any) -> str:
    return f"{_signed(found.mean, 2)}{_spread(found)}"


def _score(found: Any) -> str:
    return prose.MISSING if found is None else f"{prose.number(found.mean, 2)}{_spread(found)}"


def _spread(found: Any) -> str:
    std = getattr(found, "std", None)
    return f" ± {prose.number(std, 2)}" if std is not None and math.isfinite(std) else ""


def _signed(value: float | None, places: int) -> str:
    return prose.MISSING if value is None or not math.isfinite(value) else prose.number(value, places, "+")
