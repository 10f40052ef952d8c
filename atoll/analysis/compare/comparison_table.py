"""A comparison for a terminal: a table of the rows, and what it is made of below it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.table import Table as Printed

from atoll.analysis.compare.paired import ComparedRow, Comparison, WilcoxonOverRows
from atoll.report import TextCell, TextRow, TextTable, numbers, rich_table, row, show, significant, texts

_VERDICTS = {"a": "A better", "equal": "equal", "b": "B better", "undecided": "undecided", "one pair": "one pair"}
_MANY = 12  # reasons for leaving out that are shown


def shown(found: Comparison) -> Printed:
    """The table: print it with a rich console."""
    heads = (*texts("row"), *numbers("pairs", "A", "B", "A - B", "p(A)", "p(=)", "p(B)"), *texts("verdict"))
    rows = tuple(_row(one, found) for one in found.rows)
    title = found.metric.heading(f" at the {found.when} round")
    return rich_table(TextTable(heads, rows, title, tuple(_caption(found))))


def _row(one: ComparedRow, found: Comparison) -> TextRow:
    means = [_number(value, found) for value in (one.a, one.b)]
    chances = ["" if p is None else f"{p:.2f}" for p in (one.p_a, one.p_equal, one.p_b)]
    return row(one.name, str(len(one.seeds)), *means, _difference(one, found), *chances, _verdict(one))


def _difference(one: ComparedRow, found: Comparison) -> TextCell:
    half, ends = one.difference.half, (one.bootstrap.low, one.bootstrap.high)
    below = ", ".join(_number(end, found, "+") for end in ends if end is not None)
    spread = "" if half is None else _number(half, found)
    return TextCell(_number(one.difference.mean, found, "+"), spread, detail=below)


def _number(value: float, found: Comparison, sign: str = "") -> str:
    if not math.isfinite(value):
        return "not finite"
    return f"{value * 100:{sign}.2f}" if found.metric.percent else significant(value, sign)


def _verdict(row: ComparedRow) -> str:
    """What it is, or how far off."""
    said = _VERDICTS[row.verdict]
    if row.verdict != "undecided":
        return said
    if row.settled is None:
        return f"{said}; more than 1,000 seeds"
    more = max(1, row.settled - len(row.seeds))
    return f"{said}; {more} more seed{'' if more == 1 else 's'}"


def _caption(found: Comparison) -> Iterator[str]:
    yield f"A: {found.a}"
    yield f"B: {found.b}"
    if found.differing:
        told = [f"{key} {show(a)} / {show(b)}" for key, (a, b) in found.differing.items()]
        more = f" and {len(told) - _MANY} more" if len(told) > _MANY else ""
        yield f"What differs (A / B): {', '.join(told[:_MANY])}{more}"
    yield from (f"Privacy: {said}" for said in found.privacy[:_MANY])
    if len(found.privacy) > _MANY:
        yield f"Privacy: {len(found.privacy) - _MANY} more; --json has all."
    if any(row.p_a is not None for row in found.rows):
        yield "A - B: the mean of the paired differences ± half its 95 % t interval; below it the bootstrap's (BCa)."
        yield from _chances(found)
    else:
        yield "One pair says nothing about chance: run both with more seeds."
    yield from (_total(total) for total in found.totals)
    for reason in found.left_out[:_MANY]:
        yield f"Left out: {reason}"
    if len(found.left_out) > _MANY:
        yield f"Left out: {len(found.left_out) - _MANY} more; --json has all."


def _chances(found: Comparison) -> Iterator[str]:
    ropes = sorted({row.rope for row in found.rows})
    width = _number(ropes[0], found) + ("" if ropes[0] == ropes[-1] else f" to {_number(ropes[-1], found)}")
    yield f"p: A better, equal within {width}, B better, by the Bayesian correlated t-test (rho = {found.rho:g})."


def _total(total: WilcoxonOverRows) -> str:
    better, same, worse = total.ahead
    equal = f", {same} equal" if same else ""
    if same == total.rows:
        return f"Wilcoxon over rows, {total.method}: no row differs."
    least = f" (no less than {total.smallest:.2g} with so few rows)" if total.smallest > 0.05 else ""
    return (
        f"Wilcoxon over rows, {total.method}: A ahead in {better} of {total.rows}, B in {worse}{equal}; "
        f"p = {total.p:.2g}{least}, {total.holm:.2g} after Holm."
    )
