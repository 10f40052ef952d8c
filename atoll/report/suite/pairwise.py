"""How sure the order is, row by row: probabilities with a region of practical equivalence, and rank stability."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import combinations
from statistics import median

from matplotlib.figure import Figure

from atoll.records import Cell, Results
from atoll.report import prose, theme
from atoll.report.metrics import suite_metric
from atoll.report.plots import Plot
from atoll.report.suite.scores import by_seed, contest, named_rows, of_cell
from atoll.report.text_table import TextCell, TextColumn, TextTable, number_columns, row, text_columns
from atoll.stats import MOST_SEEDS, SURE, Posterior, Stability, correlated_t, pair, rank_stability, seeds_to_settle

MOST = 12  # posteriors that are drawn
PAIR = (*text_columns("row", "A", "B"), *number_columns("A − B", "A better", "equal", "B better"))
BAR = (TextColumn("A, equal, B", hint="blue: A is better; grey: practically equal; orange: B is better"),)
SETTLED = (
    TextColumn("order holds", "number", "how often A stays the best when one seed is left out"),
    TextColumn(
        "seeds to settle", "number",
        "seeds with which the difference would be told apart from 0, if it is what it seems",
    ),
)  # fmt: skip
RHO = 0.0  # seeds are independent, and all tested on one test set


@dataclass(frozen=True)
class PairRow:
    """A against B in one row, as text."""

    row: str
    a: str
    b: str
    posterior: Posterior
    difference: str
    holds: str = ""
    seeds: str = ""

    @property
    def p(self) -> tuple[str, str, str]:
        """A better, equal, B better, in per cent."""
        return _percent(self.posterior.p_a), _percent(self.posterior.p_equal), _percent(self.posterior.p_b)

    @property
    def widths(self) -> tuple[float, ...]:
        """The same as parts of a bar."""
        one = self.posterior
        return tuple(round(100 * p, 1) for p in (one.p_a, one.p_equal, one.p_b))

    @property
    def bar(self) -> TextCell:
        """The same as a picture."""
        label = f"A better {self.p[0]}, equal {self.p[1]}, B better {self.p[2]}"
        parts = "".join(f'<i class="{c}" style="width: {w}%"></i>' for c, w in zip("aeb", self.widths, strict=True))
        return TextCell(label, picture=f'<span class="bar" role="img" aria-label="{escape(label)}">{parts}</span>')


@dataclass(frozen=True)
class Certainty:
    """What the section shows."""

    finding: str
    told: tuple[str, ...]
    rope: str
    top: tuple[PairRow, ...]
    all: tuple[PairRow, ...]
    plots: tuple[Plot, ...]
    posterior: str

    @property
    def top_table(self) -> TextTable:
        """The two best of every row."""
        rows = (row(x.row, x.a, x.b, x.difference, x.bar, *x.p, x.holds, x.seeds) for x in self.top)
        note = (
            "The best method of a row (A) against the second best (B), at the last round, paired by seed. "
            f'"Equal" means a difference within ±{self.rope}.'
        )
        return TextTable((*PAIR[:4], *BAR, *PAIR[4:], *SETTLED), tuple(rows), notes=(note,), style="wide")

    @property
    def all_table(self) -> TextTable:
        """Every pair of every row."""
        return TextTable(PAIR, tuple(row(x.row, x.a, x.b, x.difference, *x.p) for x in self.all))


def certainty(results: Results) -> Certainty | None:
    """The two best of every row, every pair, and how often leaving out a seed changes the order."""
    rope = practical(results)
    rows = [(name, values) for name, values in _rows(results) if len(values) > 1]
    lines = [(name, values, list(_pairs(name, values, results, rope))) for name, values in rows]
    tops = [(line, values) for _, values, pairs in lines if (line := _top(values, pairs, results, rope))]
    if not tops:
        return None
    top = tuple(line for line, _ in tops)
    steady = [rank_stability(values, results.higher) for _, values in tops if _common(values) > 1]
    explanations = (_method(results, rope), _stability(steady))
    plots = tuple(_plot(i, line, results) for i, line in enumerate(top[:MOST]))
    every = tuple(line for _, _, pairs in lines for line in pairs)
    finding, explained = _finding(top, rope, results), _explained(results, rope)
    return Certainty(finding, explanations, suite_metric(results).gap(rope), top, every, plots, explained)


def practical(results: Results) -> float:
    """The largest difference that does not matter: 1 in per cent, else 1 % of what is usually measured."""
    if results.scale == 100:
        return 1.0
    scores = [of_cell(cell, results, "last") for cell in results.cells]
    means = [abs(one.mean) for one in scores if one and math.isfinite(one.mean) and one.mean != 0]
    return float(f"{0.01 * median(means):.1g}") if means else 1.0


def _rows(results: Results) -> Iterator[tuple[str, dict[str, dict[int, float]]]]:
    """Each row's methods that may win it, in the order of their means, with their values by seed."""
    for name, cells in named_rows(results):
        yield name, {m: by_seed(cells[m], results, "last") for m in _order(cells, results)}


def _order(cells: Mapping[str, Cell], results: Results) -> list[str]:
    scores = contest(results, cells, "last")
    finite = [m for m, one in scores.items() if not one.diverged]
    return sorted(finite, key=lambda m: -scores[m].mean if results.higher else scores[m].mean)


def _pairs(row: str, values: Mapping[str, Mapping[int, float]], results: Results, rope: float) -> Iterator[PairRow]:
    for a, b in combinations(values, 2):
        if len(set(values[a]) & set(values[b])) > 1:
            x, y, _ = pair(values[a], values[b], (a, b))
            posterior = correlated_t(x, y, rope=rope, rho=RHO, higher=results.higher)
            yield PairRow(row, a, b, posterior, prose.number(float((x - y).mean()), 2, "+"))


def _top(
    values: Mapping[str, Mapping[int, float]], pairs: Sequence[PairRow], results: Results, rope: float
) -> PairRow | None:
    """The best against the second best, with what leaving out seeds does, and how many seeds would settle it."""
    first, second = list(values)[:2]
    line = next((one for one in pairs if (one.a, one.b) == (first, second)), None)
    if line is None:
        return None
    x, y, _ = pair(values[first], values[second], (first, second))
    swapped = rank_stability({first: values[first], second: values[second]}, results.higher)
    unchanged = f"{len(swapped.seeds) - len(swapped.changed)} of {len(swapped.seeds)}"
    needed = seeds_to_settle(x, y, rope=rope, rho=RHO)
    seeds_needed = (
        f"over {MOST_SEEDS:,}" if needed is None else str(needed) if needed > len(x) else f"settled: {_verdict(line)}"
    )
    return PairRow(line.row, first, second, line.posterior, line.difference, unchanged, seeds_needed)


def _verdict(line: PairRow) -> str:
    return {"a": "A", "b": "B", "equal": "equal"}.get(line.posterior.verdict(), prose.MISSING)


def _common(values: Mapping[str, Mapping[int, float]]) -> int:
    return len(set.intersection(*(set(one) for one in values.values())))


def _finding(top: Sequence[PairRow], rope: float, results: Results) -> str:
    verdicts = [line.posterior.verdict() for line in top]
    clear, equal, open_ = verdicts.count("a"), verdicts.count("equal"), verdicts.count("undecided")
    return (
        f"Best against second best, row by row: in {clear} of {len(top)} the best is better by over "
        f"{suite_metric(results).gap(rope)} with a probability of {100 * SURE:.0f} % or more, in {equal} the two are "
        f"practically equal, and {open_} {'is' if open_ == 1 else 'are'} still open."
    )


def _method(results: Results, rope: float) -> str:
    return (
        f"The Bayesian correlated t-test on differences paired by seed: how probable is it that A is better than B by "
        f"more than {suite_metric(results).gap(rope)}, that they differ by less, or that B is better? "
        f"{100 * SURE:.0f} % settles it. Seeds to settle: how many would be enough if they come out like those at hand."
    )


def _stability(stabilities: Sequence[Stability]) -> str:
    if not stabilities:
        return ""
    changed, seeds = sum(len(one.changed) for one in stabilities), sum(len(one.seeds) for one in stabilities)
    return f"Rank stability: leaving out one seed changes the order of a row's methods in {changed} of {seeds} cases."


def _explained(results: Results, rope: float) -> str:
    return (
        f"What the seeds let one believe of the mean difference in {suite_metric(results).unit}, above 0 where A, the "
        f"best of the row, is better than B, the second best. Between the dashed lines (±{rope:g}) the two are "
        "practically equal; right of them A is better, left of them B."
    )


def _plot(number: int, line: PairRow, results: Results) -> Plot:
    return Plot(
        f"posterior-{number}",
        f"{line.row}: {line.a} against {line.b}",
        "",
        f"{line.row}: {line.a} better {line.p[0]}, equal {line.p[1]}, {line.b} better {line.p[2]}.",
        lambda: _draw(line, results),
    )


def _draw(line: PairRow, results: Results) -> Figure:
    figure, axes = theme.canvas(3.4, 1.9)
    one = line.posterior
    x, density = one.curve()
    if one.scale == 0:
        axes.axvline(one.mean, color=theme.SERIES[0], linewidth=2)
    else:
        axes.plot(x, density, color=theme.SERIES[0])
        parts = ((x >= one.rope, 0), (abs(x) <= one.rope, 5), (x <= -one.rope, 1))
        for where, color in parts:
            axes.fill_between(x, density, where=where, color=theme.SERIES[color], alpha=0.3, linewidth=0)
    for edge in (-one.rope, one.rope):
        axes.axvline(edge, color=theme.INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_yticks([])
    axes.set_xlabel(f"how much better A is, {suite_metric(results).unit}")
    return figure


def _percent(p: float) -> str:
    return "< 1 %" if p < 0.01 else "> 99 %" if p > 0.99 else f"{100 * p:.0f} %"
