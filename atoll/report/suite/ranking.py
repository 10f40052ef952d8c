"""Who wins over all rows: wins, average ranks, whether the methods differ at all, and Wilcoxon's test of every pair."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from atoll.records import Results, When
from atoll.report import prose
from atoll.report.plots import Plot
from atoll.report.suite.critical import critical
from atoll.report.suite.scores import best, contest, named_rows
from atoll.report.text_table import TextRow, TextTable, number_columns, row, text_columns
from atoll.stats import Estimate, average_ranks, critical_difference, friedman, holm, wilcoxon

TALLY = ("rows", "wins", "clear", "average rank")
VERDICTS = ("not told apart", "differ")
PAIRS = (
    *text_columns("pair"),
    *number_columns("rows", "median difference", "p", "p, corrected"),
    *text_columns("at 5 %"),
)

Rows = Mapping[str, Mapping[str, Estimate]]  # a row's name, then a method's score


@dataclass(frozen=True)
class Ranking:
    """What the section shows: sentences, a table of wins, a plot and the pairs."""

    finding: str
    told: tuple[str, ...]
    wins: TextTable
    plot: Plot | None
    wilcoxon: TextTable | None


def ranking(results: Results) -> Ranking | None:
    """The ranking of a suite; None where fewer than two methods meet anywhere."""
    by_when: dict[When, Rows] = {when: contests(results, when) for when in results.whens}
    rows = by_when["last"]
    if not rows:
        return None
    methods = list(dict.fromkeys(method for scores in rows.values() for method in scores))
    same, complete = comparable(rows)
    ranked = ranks({name: rows[name] for name in complete}, same, results.higher)
    order = sorted(methods, key=lambda method: (ranked.get(method, math.inf), method))
    tallies = [tally(by_when[when], results.higher) for when in results.whens]
    won = [row(method, *(text for counts in tallies for text in counts[method])) for method in order]
    wins = _wins(won, complete, results.whens)
    pairs = _wilcoxon([rows[name] for name in complete], same, results)
    plot = critical(ranked, len(complete)) if len(complete) > 1 and len(same) > 2 else None
    asked = _friedman(rows, same, complete, results)
    explanations = (
        _left_out(methods, same, rows, complete),
        _differ(asked, len(same), len(complete)),
        *_few(len(complete), pairs),
    )
    finding = _finding(rows, ranked, len(complete), asked, results)
    tested = TextTable(PAIRS, pairs) if pairs else None
    return Ranking(finding, tuple(filter(None, explanations)), wins, plot, tested)


def contests(results: Results, when: When) -> dict[str, dict[str, Estimate]]:
    """Every row in which at least two methods may win, by name."""
    by_name = {name: contest(results, cells, when) for name, cells in named_rows(results)}
    return {name: scores for name, scores in by_name.items() if len(scores) > 1}


def _wins(lines: Sequence[TextRow], complete: Sequence[str], whens: Sequence[When]) -> TextTable:
    notes = [
        'A row is won by the best mean; "clear" wins are those where no other method\'s interval overlaps.',
        "A row counts if at least two methods have two seeds there.",
    ]
    if len(complete) > 1:
        shared = f"the {len(complete)} rows that all of these methods have"
        notes.append(f"The average rank is taken over {shared} (1 is best).")
    heads = [head for when in whens for head in number_columns(*TALLY, group=f"{when} round")]
    return TextTable((*text_columns("method"), *heads), tuple(lines), notes=tuple(notes), style="wide")


def comparable(rows: Mapping[str, Mapping[str, object]]) -> tuple[list[str], list[str]]:
    """The methods, and the rows that have all of them, that make the largest full table.

    >>> comparable({"1": {"a": 1, "b": 1, "c": 1}, "2": {"a": 1, "b": 1, "c": 1}, "3": {"a": 1, "b": 1}})
    (['a', 'b', 'c'], ['1', '2'])
    """
    candidates = [list(scores) for scores in rows.values()]
    fitting = [(methods, [name for name, has in rows.items() if set(methods) <= set(has)]) for methods in candidates]
    return max(fitting, key=lambda found: (len(found[0]) * len(found[1]), len(found[0])), default=([], []))


def ranks(rows: Rows, methods: Sequence[str], higher: bool) -> dict[str, float]:
    """Average ranks of methods over rows that have all of them; 1 is the best, a diverged method is the last."""
    if not rows:
        return {}
    averages = average_ranks(matrix(list(rows.values()), methods, higher), higher)
    return dict(zip(methods, map(float, averages), strict=True))


def matrix(rows: Sequence[Mapping[str, Estimate]], methods: Sequence[str], higher: bool) -> list[list[float]]:
    """Means by row and method; what diverged is put behind everything else of its row."""
    return [_means([scores[method] for method in methods], higher) for scores in rows]


def _means(scores: Sequence[Estimate], higher: bool) -> list[float]:
    finite = [one.mean for one in scores if not one.diverged]
    worst = (min(finite) - 1 if higher else max(finite) + 1) if finite else 0.0
    return [worst if one.diverged else one.mean for one in scores]


def tally(rows: Rows, higher: bool) -> dict[str, tuple[str, ...]]:
    """For each method its rows, wins, clear wins and average rank, as text; one row makes no average."""
    same, complete = comparable(rows)
    ranked = ranks({name: rows[name] for name in complete}, same, higher) if len(complete) > 1 else {}
    methods = dict.fromkeys(method for scores in rows.values() for method in scores)
    return {
        method: (
            *map(str, counts(rows, method, higher)),
            f"{ranked[method]:.2f}" if method in ranked else prose.MISSING,
        )
        for method in methods
    }


def counts(rows: Rows, method: str, higher: bool) -> tuple[int, int, int]:
    """Rows that have the method, those that it wins, and those that it wins clear of every other interval."""
    mine = [scores for scores in rows.values() if method in scores]
    won = [scores for scores in mine if method in best(scores, higher)]
    return len(mine), len(won), sum(_clear(scores, method) for scores in won)


def _clear(scores: Mapping[str, Estimate], method: str) -> bool:
    return not any(other.overlaps(scores[method]) for name, other in scores.items() if name != method)


def _finding(rows: Rows, ranked: Mapping[str, float], complete: int, asked: float | None, results: Results) -> str:
    if not ranked or complete < 2:
        return ""
    top = min(ranked, key=lambda method: ranked[method])
    mine, won, clear = counts(rows, top, results.higher)
    sure = "" if asked is None else f" Friedman's test: {_verdict(asked)} (p {_is(asked)})."
    return (
        f"{top} has the best average rank of {len(ranked)} methods, {ranked[top]:.2f} over {complete} rows (1 would be "
        f"the best everywhere), and the best mean in {won} of {prose.counted(mine, 'row')}, {clear} of them clear of "
        f"every other method's interval.{sure}"
    )


def _left_out(methods: Sequence[str], same: Sequence[str], rows: Rows, complete: Sequence[str]) -> str:
    if len(complete) < 2:
        return "Fewer than two rows have the same methods, so there are no average ranks."
    absent = [method for method in methods if method not in same]
    short = [name for name in rows if name not in complete]
    sentence = f"Ranks are over {prose.counted(len(complete), 'row')} that {prose.listed(same)} all have."
    sentence += f" Not ranked: {prose.listed(absent)}, without two seeds in some of them." if absent else ""
    return sentence + (f" Left out, since a method is missing there: {prose.listed(short)}." if short else "")


def _friedman(rows: Rows, same: Sequence[str], complete: Sequence[str], results: Results) -> float | None:
    """The p of Friedman's test in the form of Iman and Davenport; None where there is too little to ask."""
    if len(complete) < 2 or len(same) < 3:
        return None
    return friedman(matrix([rows[name] for name in complete], same, results.higher), results.higher).f_p


def _differ(p: float | None, methods: int, rows: int) -> str:
    if p is None:
        return ""
    cd = critical_difference(methods, rows)
    asked = f"Do they differ at all? Friedman's test: p {_is(p)}, {_verdict(p)}."
    return f"{asked} Two ranks must lie {cd:.2f} apart to differ (Nemenyi, 5 %)."


def _verdict(p: float) -> str:
    return "the methods differ" if p < 0.05 else "these rows do not tell the methods apart"


def _is(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {_p(p)}"


def _wilcoxon(rows: Sequence[Mapping[str, Estimate]], same: Sequence[str], results: Results) -> tuple[TextRow, ...]:
    """Each pair over rows: how many differ, the median difference, p, and p corrected for the number of pairs."""
    if len(rows) < 2 or len(same) < 2:
        return ()
    means = dict(zip(same, zip(*matrix(rows, same, results.higher), strict=True), strict=True))
    pairs = list(combinations(same, 2))
    tests = [wilcoxon(means[a], means[b]) for a, b in pairs]
    corrected = holm([one.p for one in tests])
    gaps = [median(x - y for x, y in zip(means[a], means[b], strict=True)) for a, b in pairs]
    return tuple(
        row(f"{a} − {b}", one.n, prose.number(gap, 2, "+"), _p(one.p), _p(p), VERDICTS[bool(p < 0.05)])
        for (a, b), one, gap, p in zip(pairs, tests, gaps, corrected, strict=True)
    )


def _few(rows: int, pairs: Sequence[TextRow]) -> tuple[str, ...]:
    """That too few rows cannot give a small p, whatever the methods do."""
    if not pairs or 2.0 ** (1 - rows) * len(pairs) < 0.05:
        return ()
    least = min(1.0, 2.0 ** (1 - rows) * len(pairs))
    return (
        f"With {prose.counted(rows, 'row')} and {prose.counted(len(pairs), 'pair')} Wilcoxon's corrected p cannot fall "
        f"below {_p(least)}: a test that finds nothing here says little.",
    )


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"
