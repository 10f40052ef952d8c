"""Against the paper: the comparison that `atoll.records.versus_published` works out, as a table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from atoll.records import MeanOverSeeds, Published, Results, VersusPublished, compare_with_published
from atoll.report import prose
from atoll.report.metrics import suite_metric
from atoll.report.text_table import TextCell, TextColumn, TextRow, TextTable, number_columns, row, text_columns

HEADS = (
    *text_columns("cell"),
    *number_columns("theirs", "ours, last", "ours, best", "difference"),
    TextColumn("allowed", "number", "the largest difference that still agrees"),
    TextColumn("in their std", "number", "the difference in their standard deviations"),
    TextColumn("in our std", "number", "the difference in our standard deviations"),
    *text_columns("verdict", "why"),
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


def shown(results: Results, rows: Sequence[VersusPublished]) -> PublishedSection | None:
    """These rows as tables."""
    if not rows:
        return None
    explanation = (
        f"Each cell of {_named(results)} beside ours. Papers seldom say whether they print the last or the best round, "
        "so the nearer of ours counts. It agrees within a practical margin or two standard errors of "
        'the difference, whichever is larger ("allowed"): where that is wide, agreement says little. Lines in italics '
        "repeat a quirk of the published code, to see what it does."
    )
    note = (
        f"{prose.first_up(suite_metric(results).unit)}, mean ± standard deviation over seeds. Difference: the nearer "
        "of ours minus theirs, and the same counted in their and in our standard deviations."
    )
    ran = tuple(_row(row) for row in rows if row.ours_last is not None)
    missing = tuple(_missing(row) for row in rows if row.ours_last is None)
    others = TextTable((*HEADS[:2], *HEADS[-2:]), missing) if missing else None
    return PublishedSection(
        _finding(results, rows),
        explanation,
        TextTable(HEADS, ran, notes=(note,), style="wide") if ran else None,
        others,
    )


def _named(results: Results) -> str:
    names = dict.fromkeys(name for name in (results.reference, *results.references.values()) if name)
    return f"the published table {' and '.join(names)}"


def _finding(results: Results, rows: Sequence[VersusPublished]) -> str:
    """How many cells of the paper agree, differ, or could not be compared; a quirk is no cell of the paper."""
    counts = Counter(row.verdict for row in rows if row.quirk is None and row.theirs is not None)
    agree, differ = counts.pop("agrees", 0), counts.pop("differs", 0)
    rest = prose.listed(
        f"{count} {'were ' if verdict == 'not run' else ''}{verdict}" for verdict, count in counts.items()
    )
    why = sum(row.explained for row in rows)
    sentence = (
        f"{agree} of {prose.counted(agree + differ, 'cell')} compared agree with {_named(results)}, {differ} differ"
    )
    sentence += f" ({why} of them agree with a published quirk)." if why else "."
    parts = [prose.first_up(sentence) if agree + differ else "", f"Of its other cells {rest}." if rest else ""]
    return " ".join(filter(None, parts))


def _row(versus: VersusPublished) -> TextRow:
    figures = (
        *map(_score, (versus.theirs, versus.ours_last, versus.ours_best)),
        _signed(versus.difference, 2),
        prose.MISSING if versus.allowed is None else prose.number(versus.allowed, 2),
        _signed(versus.in_theirs, 1),
        _signed(versus.in_ours, 1),
    )
    kind = versus.verdict if versus.verdict in ("agrees", "differs") else "other"
    why = TextCell(" ".join(filter(None, (_reason(versus), _effect(versus)))), style="why")
    verdict = TextCell(versus.verdict, style=f"verdict {kind}")
    return row(versus.name, *figures, verdict, why, style="quirk" if versus.quirk else "", hint=versus.quirk or "")


def _missing(versus: VersusPublished) -> TextRow:
    verdict = TextCell(versus.verdict, style="verdict")
    return row(versus.name, _score(versus.theirs), verdict, TextCell(_reason(versus), style="why"))


def _reason(versus: VersusPublished) -> str:
    return prose.first_up(f"{versus.why}.") if versus.why else ""


def _effect(row: VersusPublished) -> str:
    """What a quirk does to the right method, seed by seed."""
    if row.effect is None:
        return ""
    paired = "paired over" if row.effect.paired else "not paired, over"
    seeds = prose.counted(len(row.effect.seeds), "seed")
    return f"Effect of the quirk at the last round: {_score(row.effect.last, '+')}, {paired} {seeds}."


def _score(score: MeanOverSeeds | Published | None, sign: str = "") -> str:
    if score is None:
        return prose.MISSING
    spread = "" if score.std is None or not math.isfinite(score.std) else prose.number(score.std, 2)
    if isinstance(score, MeanOverSeeds) and score.std is not None and score.std <= 1e-9 * abs(score.mean):
        return TextCell(prose.number(score.mean, 2, sign), remarks=(prose.ALL_EQUAL,)).inline
    return TextCell(prose.number(score.mean, 2, sign), spread).inline


def _signed(value: float | None, places: int) -> str:
    return prose.MISSING if value is None or not math.isfinite(value) else prose.number(value, places, "+")
