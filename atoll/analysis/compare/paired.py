"""The paired tests: of every row over its seeds, and over rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from atoll.analysis.compare.load_side import Side, metric_of
from atoll.analysis.compare.matching import Match, match
from atoll.errors import ConfigError, RecordError
from atoll.records import When
from atoll.report import MetricInfo
from atoll.stats import Estimate, bootstrap_interval, correlated_t, holm, seeds_to_settle, t_interval, wilcoxon

ROPE = 0.01  # of a share such as accuracy; of the mean of both sides for what is no share


@dataclass(frozen=True)
class ComparedRow:
    """One row: A - B over its pairs. Without a second pair there is a difference, but nothing to weigh it with."""

    name: str
    place: Mapping[str, Any]
    seeds: tuple[int, ...]
    a: float  # means
    b: float
    difference: Estimate  # with its t interval
    bootstrap: Estimate
    rope: float
    p_a: float | None = None  # A better by more than the rope
    p_equal: float | None = None
    p_b: float | None = None
    verdict: str = "one pair"  # "a", "equal", "b" or "undecided"
    settled: int | None = None  # seeds in all that would settle it; None: more than 1,000, or never


@dataclass(frozen=True)
class WilcoxonOverRows:
    """Wilcoxon's signed-rank test over the rows of a method (of all rows, where one method is compared)."""

    method: str
    rows: int
    ahead: tuple[int, int, int]  # rows where the mean of A is better, the same, worse
    p: float
    holm: float  # corrected for the number of methods
    smallest: float  # the smallest p that so many rows can give


@dataclass(frozen=True)
class Comparison:
    """Two sides and what came of comparing them."""

    a: str
    b: str
    metric: MetricInfo
    when: When
    rho: float
    rows: tuple[ComparedRow, ...]
    totals: tuple[WilcoxonOverRows, ...]
    left_out: tuple[str, ...]
    differing: Mapping[str, tuple[Any, Any]]
    privacy: tuple[str, ...] = ()  # what the sides promise, where one has an epsilon
    security: tuple[str, ...] = ()  # FedEval's level of both, where they state it
    attack: tuple[str, ...] = ()  # who attacked them, where somebody did

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    a: Side, b: Side, *, metric: str | None = None, when: When = "last", rope: float | None = None, rho: float = 0.0
) -> Comparison:
    """The paired comparison of two sides. `rope` is in the unit of the metric; `rho` as `atoll.stats.correlated_t`."""
    if rope is not None and rope < 0:
        raise ConfigError(f"--rope: must be 0 or above (got {rope:g}).")
    measure = metric_of((a, b), metric)
    matched = match(a.series(measure, when), b.series(measure, when))
    if not matched.rows:
        raise RecordError(
            "\n".join([f"{a.name}, {b.name}: nothing to pair. Run both with the same seeds.", *matched.left_out])
        )
    rows = tuple(_row(row, measure, rope, rho) for row in matched.rows)
    method = a.method if a.method == b.method else ""
    totals = _totals(rows, method, measure.higher_is_better)
    privacy = _said_of({row.name: row.privacy for row in matched.rows})
    security = _said_of({row.name: row.security for row in matched.rows})
    attack = _said_of({row.name: row.attack for row in matched.rows})
    found = matched.left_out, matched.differing, privacy, security, attack
    return Comparison(a.name, b.name, measure, when, rho, rows, totals, *found)


def _said_of(rows: Mapping[str, str]) -> tuple[str, ...]:
    """What is said, once where it is the same of all rows; else with the rows that it is said of."""
    named: dict[str, list[str]] = {}
    for row, said in rows.items():
        named.setdefault(said, []).append(row)
    if len(named) == 1:
        return tuple(filter(None, named))
    return tuple(f"{', '.join(names)}: {promise}" for promise, names in named.items() if promise)


def _row(row: Match, metric: MetricInfo, rope: float | None, rho: float) -> ComparedRow:
    differences = [x - y for x, y in zip(row.a, row.b, strict=True)]
    a, b = statistics.fmean(row.a), statistics.fmean(row.b)
    width = rope if rope is not None else ROPE if metric.share else ROPE * (abs(a) + abs(b)) / 2
    intervals = t_interval(differences), bootstrap_interval(differences)
    if len(differences) < 2:
        return ComparedRow(row.name, row.place, row.seeds, a, b, *intervals, width)
    belief = correlated_t(row.a, row.b, rope=width, rho=rho, higher=metric.higher_is_better)
    settled = seeds_to_settle(row.a, row.b, rope=width, rho=rho)
    chances = belief.p_a, belief.p_equal, belief.p_b
    return ComparedRow(row.name, row.place, row.seeds, a, b, *intervals, width, *chances, belief.verdict(), settled)


def _totals(rows: Sequence[ComparedRow], method: str, higher: bool) -> tuple[WilcoxonOverRows, ...]:
    """A test for every method of which there are two rows or more."""
    families: dict[str, list[ComparedRow]] = {}
    for row in rows:
        families.setdefault(str(row.place.get(method, "all rows")), []).append(row)
    tested = {name: members for name, members in families.items() if len(members) > 1}
    tests = {name: wilcoxon([r.a for r in rs], [r.b for r in rs]) for name, rs in tested.items()}
    if not tests:
        return ()
    corrected = holm([test.p for test in tests.values()])
    return tuple(
        WilcoxonOverRows(name, len(tested[name]), _ahead(tested[name], higher), test.p, float(p), test.smallest)
        for (name, test), p in zip(tests.items(), corrected, strict=True)
    )


def _ahead(rows: Sequence[ComparedRow], higher: bool) -> tuple[int, int, int]:
    gaps = [(row.a - row.b) * (1 if higher else -1) for row in rows]
    return sum(g > 0 for g in gaps), sum(g == 0 for g in gaps), sum(g < 0 for g in gaps)
