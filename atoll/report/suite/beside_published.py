"""Against the paper: the comparison that `atoll.records.versus_published` works out, as a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from atoll.records import MeanOverSeeds, Published, Results, VersusPublished, compare_with_published
from atoll.report import prose
from atoll.report.metrics import suite_metric
from atoll.report.text_table import TextCell, TextColumn, TextRow, TextTable, numbers, row, texts

HEADS = (
    *texts("cell"),
    *numbers("theirs", "ours, last", "ours, best", "difference"),
    TextColumn("allowed", "number", "the largest difference that still agrees"),
    TextColumn("in their std", "number", "the difference in their standard deviations"),
    TextColumn("in our std", "number", "the difference in our standard deviations"),
    *texts("verdict", "why"),
)


@dataclass(frozen=True)
class PublishedSection:
    """What the section shows: cells that were run, and published ones that were not."""

    finding: str
    told: str
    rows: TextTable | None
    others: TextTable | None


def comparison(results: Results) -> PublishedSection | None:
    """The comparison with the suite's published table; None where there is none."""
    if results.reference is None and not any(results.references.values()):
        return None
    return shown(results, compare_with_published(results))


def shown(results: Results, found: Sequence[VersusPublished]) -> PublishedSection | None:
    """These rows as tables."""
    if not found:
        return None
    told = (
        f"Each cell of {_named(results)} beside ours. Papers seldom say whether they print the last or the best round, "
        "so the nearer of ours counts. It agrees within a practical margin or two standard errors of "
        'the difference, whichever is larger ("allowed"): where that is wide, agreement says little. Lines in italics '
        "repeat a quirk of the published code, to see what it does."
    )
    note = (
        f"{prose.first_up(suite_metric(results).unit)}, mean ± standard deviation over seeds. Difference: the nearer "
        "of ours minus theirs, and the same counted in their and in our standard deviations."
    )
    ran = tuple(_row(row) for row in found if row.ours_last is not None)
    missing = tuple(_missing(row) for row in found if row.ours_last is None)
    others = TextTable((*HEADS[:2], *HEADS[-2:]), missing) if missing else None
    return PublishedSection(
        _finding(results, found), told, TextTable(HEADS, ran, notes=(note,), style="wide") if ran else None, others
    )


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


def _row(found: VersusPublished) -> TextRow:
    figures = (
        *map(_score, (found.theirs, found.ours_last, found.ours_best)),
        _signed(found.difference, 2),
        prose.MISSING if found.allowed is None else prose.number(found.allowed, 2),
        _signed(found.in_theirs, 1),
        _signed(found.in_ours, 1),
    )
    kind = found.verdict if found.verdict in ("agrees", "differs") else "other"
    why = TextCell(" ".join(filter(None, (_reason(found), _effect(found)))), style="why")
    verdict = TextCell(found.verdict, style=f"verdict {kind}")
    return row(found.name, *figures, verdict, why, style="quirk" if found.quirk else "", hint=found.quirk or "")


def _missing(found: VersusPublished) -> TextRow:
    verdict = TextCell(found.verdict, style="verdict")
    return row(found.name, _score(found.theirs), verdict, TextCell(_reason(found), style="why"))


def _reason(found: VersusPublished) -> str:
    return prose.first_up(f"{found.why}.") if found.why else ""


def _effect(row: VersusPublished) -> str:
    """What a quirk does to the right method, seed by seed."""
    if row.effect is None:
        return ""
    paired = "paired over" if row.effect.paired else "not paired, over"
    seeds = prose.counted(len(row.effect.seeds), "seed")
    return f"Effect of the quirk at the last round: {_score(row.effect.last, '+')}, {paired} {seeds}."


def _score(found: MeanOverSeeds | Published | None, sign: str = "") -> str:
    if found is None:
        return prose.MISSING
    spread = "" if found.std is None or not math.isfinite(found.std) else prose.number(found.std, 2)
    if isinstance(found, MeanOverSeeds) and found.std is not None and found.std <= 1e-9 * abs(found.mean):
        return TextCell(prose.number(found.mean, 2, sign), remarks=(prose.ALL_EQUAL,)).inline
    return TextCell(prose.number(found.mean, 2, sign), spread).inline


def _signed(value: float | None, places: int) -> str:
    return prose.MISSING if value is None or not math.isfinite(value) else prose.number(value, places, "+")
