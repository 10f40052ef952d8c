"""A comparison for a terminal: a table of the rows, and what it is made of below it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.table import Table as Printed

from atoll.analysis.compare.paired import ComparedRow, Comparison, WilcoxonOverRows
from atoll.report import TextCell, TextRow, TextTable, number_columns, rich_table, row, show, significant, text_columns

_VERDICTS = {"a": "A better", "equal": "equal", "b": "B better", "undecided": "undecided", "one pair": "one pair"}
_MANY = 12  # reasons for leaving out that are shown


def shown(comparison: Comparison) -> Printed:
    """The table: print it with a rich console."""
    heads = (
        *text_columns("row"),
        *number_columns("pairs", "A", "B", "A - B", "p(A)", "p(=)", "p(B)"),
        *text_columns("verdict"),
    )
    rows = tuple(_row(one, comparison) for one in comparison.rows)
    title = comparison.metric.heading(f" at the {comparison.when} round")
    return rich_table(TextTable(heads, rows, title, tuple(_caption(comparison))))


def _row(one: ComparedRow, comparison: Comparison) -> TextRow:
    means = [_number(value, comparison) for value in (one.a, one.b)]
    chances = ["" if p is None else f"{p:.2f}" for p in (one.p_a, one.p_equal, one.p_b)]
    return row(one.name, str(len(one.seeds)), *means, _difference(one, comparison), *chances, _verdict(one))


def _difference(one: ComparedRow, comparison: Comparison) -> TextCell:
    half, ends = one.difference.half, (one.bootstrap.low, one.bootstrap.high)
    below = ", ".join(_number(end, comparison, "+") for end in ends if end is not None)
    spread = "" if half is None else _number(half, comparison)
    return TextCell(_number(one.difference.mean, comparison, "+"), spread, detail=below)


def _number(value: float, comparison: Comparison, sign: str = "") -> str:
    if not math.isfinite(value):
        return "not finite"
    return f"{value * 100:{sign}.2f}" if comparison.metric.percent else significant(value, sign)


def _verdict(row: ComparedRow) -> str:
    """What it is, or how far off."""
    verdict = _VERDICTS[row.verdict]
    if row.verdict != "undecided":
        return verdict
    if row.settled is None:
        return f"{verdict}; more than 1,000 seeds"
    more = max(1, row.settled - len(row.seeds))
    return f"{verdict}; {more} more seed{'' if more == 1 else 's'}"


def _caption(comparison: Comparison) -> Iterator[str]:
    yield f"A: {comparison.a}"
    yield f"B: {comparison.b}"
    if comparison.differing:
        differing = [f"{key} {show(a)} / {show(b)}" for key, (a, b) in comparison.differing.items()]
        more = f" and {len(differing) - _MANY} more" if len(differing) > _MANY else ""
        yield f"What differs (A / B): {', '.join(differing[:_MANY])}{more}"
    yield from (f"Privacy: {promise}" for promise in comparison.privacy[:_MANY])
    if len(comparison.privacy) > _MANY:
        yield f"Privacy: {len(comparison.privacy) - _MANY} more; --json has all."
    yield from (f"Security: {level}" for level in comparison.security[:_MANY])
    yield from (f"Attack: {attack}" for attack in comparison.attack[:_MANY])
    if any(row.p_a is not None for row in comparison.rows):
        yield "A - B: the mean of the paired differences ± half its 95 % t interval; below it the bootstrap's (BCa)."
        yield from _chances(comparison)
    else:
        yield "One pair says nothing about chance: run both with more seeds."
    yield from (_total(total) for total in comparison.totals)
    for reason in comparison.left_out[:_MANY]:
        yield f"Left out: {reason}"
    if len(comparison.left_out) > _MANY:
        yield f"Left out: {len(comparison.left_out) - _MANY} more; --json has all."


def _chances(comparison: Comparison) -> Iterator[str]:
    ropes = sorted({row.rope for row in comparison.rows})
    width = _number(ropes[0], comparison) + ("" if ropes[0] == ropes[-1] else f" to {_number(ropes[-1], comparison)}")
    yield f"p: A better, equal within {width}, B better, by the Bayesian correlated t-test (rho = {comparison.rho:g})."


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
