"""Against the paper: for every published cell ours, theirs, the difference, and a verdict.

The rule. d = ours - theirs, of means over seeds. Allowed is the larger of
  a practical margin: 0.01, one percentage point (OARF's region of practical equivalence); where a metric is not shown
  in per cent, 1 % of the published figure;
  two standard errors of d: 2 sqrt(s_theirs^2 / n_theirs + s_ours^2 / n_ours), s over seeds. With one seed of ours
  s_ours is taken to be s_theirs; a deviation that the paper does not give counts as 0.
A cell agrees if |d| is at most that at the last or at the best round, since papers seldom say which one they print. The
allowance is part of the row: where it is wide, agreement says little. Sizes other than "full" are not the published
settings: they are shown and not judged.

>>> from atoll.results import Cell, Results, Trace
>>> runs = tuple(Trace(s, "", (50,), (v,), (1.0,), (1.0,)) for s, v in enumerate((0.88, 0.884, 0.885)))
>>> path = {"data": "fmnist", "partition": "dirichlet(0.5)", "algorithm": "fedavg"}
>>> made = Results("mine", "", "full", "accuracy", True, tuple(path), (Cell("images", path, runs),),
...                scale=100, reference="niid_bench_table3", missing={"svhn/*": "no package carries SVHN"})
>>> rows = against(made)
>>> print(rows[0].name, rows[0].words, f"{rows[0].last.difference:+.3f} of {rows[0].last.allowed:.3f}")
fmnist/dirichlet(0.5)/fedavg agrees +0.002 of 0.010
>>> next(row.words for row in rows if row.name == "svhn/iid/fedavg")
'theirs cannot be had: no package carries SVHN'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from statistics import fmean, stdev
from typing import Literal

from atoll.results.cells import Cell, Results, When
from atoll.results.published import Entry, Published, table

MARGIN = 0.01
ERRORS = 2.0

Verdict = Literal["agrees", "differs", "cannot be had", "not run", "not published"]


@dataclass(frozen=True)
class Gap:
    """Ours less theirs, at the last or at the best round."""

    mean: float  # ours
    std: float | None  # ours; None for one seed
    seeds: int
    difference: float
    allowed: float
    in_theirs: float | None  # the difference in their standard deviations; None where they have none, or 0
    in_ours: float | None

    @property
    def within(self) -> bool:
        """Is the difference allowed?"""
        return abs(self.difference) <= self.allowed


@dataclass(frozen=True)
class Effect:
    """What a published mistake does: its cell less the right one, by seed."""

    right: str  # the cell that it is compared with
    seeds: tuple[int, ...]
    last: float
    best: float
    last_std: float | None  # of the differences over seeds; None for one seed
    best_std: float | None
    paired: bool  # had both the same partition, seed by seed?


@dataclass(frozen=True)
class Row:
    """One published cell, or one quirk."""

    name: str
    block: str  # "" where nothing was run
    theirs: Published | None
    last: Gap | None
    best: Gap | None
    verdict: Verdict
    why: str = ""
    quirk: str | None = None
    effect: Effect | None = None

    @property
    def words(self) -> str:
        """The verdict as a sentence."""
        said = "theirs cannot be had" if self.verdict == "cannot be had" else self.verdict
        return f"{said}: {self.why}" if self.why else said


def against(results: Results) -> tuple[Row, ...]:
    """A row for every cell that has a published figure or a quirk, then the published cells that were not run."""
    entries = table(results.reference).entries if results.reference else ()
    found = {cell_key(cell): _entry(results, cell) for cell in results.cells}
    rows = [_row(results, cell, found[cell_key(cell)]) for cell in results.cells if found[cell_key(cell)] or cell.quirk]
    seen = [entry for entry in found.values() if entry]
    left = [e for e in entries if e.metric == results.metric and e not in seen]
    return (*_explained(rows), *(_absent(results, entry) for entry in left))


def cell_key(cell: Cell) -> tuple[str, str]:
    """What tells a cell from all others."""
    return cell.block, cell.name


def right_of(results: Results, cell: Cell) -> Cell | None:
    """The cell that a quirk's cell is a form of: the same place but for one value, which is `stands_for`."""
    paths = _without_quirk(cell)
    return next((c for c in results.cells if c.block == cell.block and dict(c.path) in paths and not c.quirk), None)


def _entry(results: Results, cell: Cell) -> Entry | None:
    if not results.reference:
        return None
    published = table(results.reference)
    tried = [published.find(path, results.metric) for path in [dict(cell.path), *_without_quirk(cell)]]
    return next((entry for entry in tried if entry), None)


def _without_quirk(cell: Cell) -> list[dict[str, str]]:
    if cell.stands_for is None:
        return []
    return [{**cell.path, axis: cell.stands_for} for axis in reversed(list(cell.path))]


def _row(results: Results, cell: Cell, entry: Entry | None) -> Row:
    theirs = entry.figure if entry else None
    gaps = [_gap(results, cell, theirs, when) for when in ("last", "best")] if theirs else [None, None]
    verdict, why = _verdict(results, cell, theirs, gaps)
    effect = _effect(results, cell) if cell.quirk else None
    return Row(cell.name, cell.block, theirs, gaps[0], gaps[1], verdict, why, cell.quirk, effect)


def _verdict(results: Results, cell: Cell, theirs: Published | None, gaps: Sequence[Gap | None]) -> tuple[Verdict, str]:
    if not cell.runs:
        return "not run", "; ".join(f"{k}: {v}" for k, v in cell.failed.items())
    if theirs is None:
        return "not published", ""
    if results.size != "full":
        return "not run", f"the size {results.size!r} does not have the published settings"
    if any(gap.within for gap in gaps if gap):
        return "agrees", ""
    lost = sum(not math.isfinite(run.last) for run in cell.runs)
    return "differs", f"{lost} of {len(cell.runs)} seeds did not end in a number" if lost else ""


def _gap(results: Results, cell: Cell, theirs: Published, when: When) -> Gap | None:
    values = list(cell.by_seed(when, results.higher).values())
    if not values:
        return None
    mean, std = fmean(values), _std(values)
    d = mean - theirs.mean
    margin = MARGIN if results.scale == 100 else MARGIN * abs(theirs.mean)
    allowed = max(margin, ERRORS * _error(theirs, std, len(values)))
    return Gap(mean, std, len(values), d, allowed, d / theirs.std if theirs.std else None, d / std if std else None)


def _error(theirs: Published, std: float | None, n: int) -> float:
    """The standard error of the difference of both means."""
    published = theirs.std or 0.0
    own = published if std is None else std
    return math.sqrt(published**2 / theirs.runs + own**2 / n)


def _effect(results: Results, cell: Cell) -> Effect | None:
    right = right_of(results, cell)
    mine = {run.seed: run for run in cell.runs}
    other = {run.seed: run for run in right.runs} if right else {}
    seeds = tuple(sorted(mine.keys() & other.keys()))
    if right is None or not seeds:
        return None
    last, best = (
        [mine[s].at(when, results.higher) - other[s].at(when, results.higher) for s in seeds]
        for when in ("last", "best")
    )
    paired = all(mine[s].partition == other[s].partition for s in seeds)
    return Effect(right.name, seeds, fmean(last), fmean(best), _std(last), _std(best), paired)


def _explained(rows: Sequence[Row]) -> list[Row]:
    """Say of a cell that differs which quirk agrees with the paper in its place."""
    by_place = {(row.block, row.effect.right): row for row in rows if row.effect and row.verdict == "agrees"}
    return [_with_reason(row, by_place) for row in rows]


def _with_reason(row: Row, quirks: Mapping[tuple[str, str], Row]) -> Row:
    quirk = quirks.get((row.block, row.name))
    if row.verdict != "differs" or quirk is None:
        return row
    return replace(row, why=f"a quirk of the published code explains it: {quirk.name} agrees")


def _absent(results: Results, entry: Entry) -> Row:
    name = "/".join(entry.at.get(axis, "*") for axis in results.axes)
    why = next((why for pattern, why in results.missing.items() if fnmatchcase(name, pattern)), None)
    verdict: Verdict = "not run" if why is None else "cannot be had"
    return Row(name, "", entry.figure, None, None, verdict, why or "")


def _std(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None
