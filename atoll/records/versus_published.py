"""Against the paper: for every published cell ours, theirs, the difference, and a verdict.

The rule. d = ours - theirs, of means over seeds. Allowed is the larger of
  a practical margin: one percentage point (OARF's region of practical equivalence); where a metric is not shown in per
  cent, 1 % of the published figure;
  two standard errors of d: 2 sqrt(s_theirs^2 / n_theirs + s_ours^2 / n_ours), s over seeds. With one seed of ours
  s_ours is taken to be s_theirs; a deviation that the paper does not give counts as 0.
A cell agrees if |d| is at most that at the last or at the best round, since papers seldom say which one they print; the
row has the nearer of the two, and what was allowed: where that is wide, agreement says little. Sizes other than "full"
are not the published settings: they are shown and not judged, unless the size says how it deviates from them, which
then stands beside the verdict. All numbers are in the scale that the suite shows.

>>> from atoll.records import Cell, Results, Trace
>>> runs = tuple(Trace(s, "", (50,), (v,), (1.0,), (1.0,)) for s, v in enumerate((0.88, 0.884, 0.885)))
>>> path = {"data": "fmnist", "partition": "dirichlet(0.5)", "algorithm": "fedavg"}
>>> made = Results("mine", "", "full", "accuracy", True, tuple(path), (Cell("images", path, runs),),
...                scale=100, reference="niid_bench_table3", missing={"svhn/*": "no package carries SVHN"})
>>> found = compare_with_published(made)
>>> print(found[0].name, found[0].words, f"{found[0].difference:+.1f}, allowed {found[0].allowed:.1f}")
fmnist/dirichlet(0.5)/fedavg agrees +0.2, allowed 1.0
>>> next(row.words for row in found if row.name == "svhn/iid/fedavg")
'theirs cannot be had: no package carries SVHN'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from statistics import fmean, stdev
from typing import Literal

from atoll.records.cells import Cell, Results, Trace, When
from atoll.records.published import Published, PublishedEntry, published_table

MARGIN = 0.01
ERRORS = 2.0
_WHENS: tuple[When, When] = ("last", "best")

Verdict = Literal["agrees", "differs", "cannot be had", "not run", "not published"]


@dataclass(frozen=True)
class MeanOverSeeds:
    """A mean over seeds."""

    mean: float
    std: float | None  # None for one seed
    n: int


@dataclass(frozen=True)
class PublishedGap:
    """Ours less theirs, at the last or at the best round."""

    when: When
    difference: float
    allowed: float
    in_theirs: float | None  # the difference in their standard deviations; None where they have none, or 0
    in_ours: float | None

    @property
    def within(self) -> bool:
        return abs(self.difference) <= self.allowed


@dataclass(frozen=True)
class Effect:
    """What a published mistake does: its cell less the right one, by seed."""

    right: str  # the cell that it is compared with
    block: str  # of that cell
    seeds: tuple[int, ...]
    last: MeanOverSeeds
    best: MeanOverSeeds
    paired: bool  # had both the same partition, seed by seed?


@dataclass(frozen=True)
class VersusPublished:
    """One published cell, or one quirk."""

    name: str
    block: str  # "" where nothing was run
    theirs: Published | None
    verdict: Verdict
    why: str = ""
    ours_last: MeanOverSeeds | None = None
    ours_best: MeanOverSeeds | None = None
    gap: PublishedGap | None = None  # the nearer of last and best
    quirk: str | None = None
    effect: Effect | None = None
    explained: bool = False  # it differs, and a quirk's cell agrees in its place

    @property
    def difference(self) -> float | None:
        """Ours less theirs."""
        return self.gap.difference if self.gap else None

    @property
    def allowed(self) -> float | None:
        """The largest difference that still agrees."""
        return self.gap.allowed if self.gap else None

    @property
    def in_theirs(self) -> float | None:
        """The difference in their standard deviations."""
        return self.gap.in_theirs if self.gap else None

    @property
    def in_ours(self) -> float | None:
        """The difference in our standard deviations."""
        return self.gap.in_ours if self.gap else None

    @property
    def words(self) -> str:
        """The verdict as a sentence."""
        said = "theirs cannot be had" if self.verdict == "cannot be had" else self.verdict
        return f"{said}: {self.why}" if self.why else said


def compare_with_published(results: Results) -> tuple[VersusPublished, ...]:
    """A row for every cell that has a published figure or a quirk, then the published cells that were not run."""
    named = dict.fromkeys(name for name in (results.reference, *results.references.values()) if name)
    entries = [entry for name in named for entry in published_table(name).entries]
    matched = [(cell, _entry(results, cell)) for cell in results.cells]
    ran = [_row(results, cell, entry) for cell, entry in matched if entry or cell.quirk]
    seen = [entry for _, entry in matched if entry]
    left = [e for e in entries if e.metric == results.metric and e not in seen]
    return (*_explained(ran), *(_absent(results, entry) for entry in left))


def right_of(results: Results, cell: Cell) -> Cell | None:
    """The cell that a quirk's cell is a form of, of its own block if it is there."""
    named = [c for c in results.cells if c.name == cell.stands_for]
    return next((c for c in named if c.block == cell.block), named[0] if named else None)


def _entry(results: Results, cell: Cell) -> PublishedEntry | None:
    name = results.references.get(cell.block, results.reference)
    if not name:
        return None
    place = cell.stands_for.split("/") if cell.stands_for else cell.path.values()
    return published_table(name).find(dict(zip(cell.path, place, strict=True)), results.metric)


def _row(results: Results, cell: Cell, entry: PublishedEntry | None) -> VersusPublished:
    last, best = (_score([run.at(when, results.higher) for run in cell.runs], results.scale) for when in _WHENS)
    theirs = _shown(entry.figure, results.scale) if entry else None
    gaps = [
        _gap(results, theirs, ours, when) for ours, when in ((last, _WHENS[0]), (best, _WHENS[1])) if theirs and ours
    ]
    nearer = min(gaps, key=lambda gap: (not gap.within, abs(gap.difference)), default=None)
    verdict, why = _verdict(results, cell, nearer)
    effect = _effect(results, cell) if cell.quirk else None
    return VersusPublished(cell.name, cell.block, theirs, verdict, why, last, best, nearer, cell.quirk, effect)


def _verdict(results: Results, cell: Cell, gap: PublishedGap | None) -> tuple[Verdict, str]:
    if not cell.runs:
        return "not run", "; ".join(f"{k}: {v}" for k, v in cell.failed.items())
    if gap is None:
        return "not published", ""
    if results.size != "full" and not results.deviates:
        return "not run", f"the size {results.size!r} does not have the published settings"
    lost = sum(not math.isfinite(run.last) for run in cell.runs)
    numbers = f"{lost} of {len(cell.runs)} seeds did not end in a number" if lost else ""
    why = [numbers, results.deviates] if not gap.within else [results.deviates]
    return "agrees" if gap.within else "differs", "; ".join(x for x in why if x)


def _gap(results: Results, theirs: Published, ours: MeanOverSeeds, when: When) -> PublishedGap:
    d = ours.mean - theirs.mean
    margin = MARGIN * (results.scale if results.scale == 100 else abs(theirs.mean))
    allowed = max(margin, ERRORS * _error(theirs, ours))
    return PublishedGap(when, d, allowed, d / theirs.std if theirs.std else None, d / ours.std if ours.std else None)


def _error(theirs: Published, ours: MeanOverSeeds) -> float:
    """The standard error of the difference of both means."""
    published = theirs.std or 0.0
    own = published if ours.std is None else ours.std
    return math.sqrt(published**2 / theirs.runs + own**2 / ours.n)


def _effect(results: Results, cell: Cell) -> Effect | None:
    right = right_of(results, cell)
    mine, other = _by_seed(cell), _by_seed(right) if right else {}
    seeds = tuple(sorted(mine.keys() & other.keys()))
    if right is None or not seeds:
        return None
    last, best = (
        _score([mine[s].at(when, results.higher) - other[s].at(when, results.higher) for s in seeds], results.scale)
        for when in _WHENS
    )
    assert last is not None  # there are seeds
    assert best is not None
    return Effect(
        right.name, right.block, seeds, last, best, all(mine[s].partition == other[s].partition for s in seeds)
    )


def _explained(ran: Sequence[VersusPublished]) -> list[VersusPublished]:
    """Say of a cell that differs which quirk agrees with the paper in its place."""
    quirks = {(row.effect.block, row.effect.right): row for row in ran if row.effect and row.verdict == "agrees"}
    return [_because(row, quirks.get((row.block, row.name))) if row.verdict == "differs" else row for row in ran]


def _because(row: VersusPublished, quirk: VersusPublished | None) -> VersusPublished:
    if quirk is None:
        return row
    return replace(row, why=f"a quirk of the published code explains it: {quirk.name} agrees", explained=True)


def _absent(results: Results, entry: PublishedEntry) -> VersusPublished:
    name = "/".join(entry.at.get(axis, "*") for axis in results.axes)
    why = next((why for pattern, why in results.missing.items() if fnmatchcase(name, pattern)), None)
    verdict: Verdict = "not run" if why is None else "cannot be had"
    return VersusPublished(name, "", _shown(entry.figure, results.scale), verdict, why or "")


def _shown(figure: Published, scale: float) -> Published:
    return replace(figure, mean=figure.mean * scale, std=None if figure.std is None else figure.std * scale)


def _by_seed(cell: Cell) -> dict[int, Trace]:
    return {run.seed: run for run in cell.runs}


def _score(values: Sequence[float], scale: float) -> MeanOverSeeds | None:
    if not values:
        return None
    spread = stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None
    return MeanOverSeeds(fmean(values) * scale, None if spread is None else spread * scale, len(values))
