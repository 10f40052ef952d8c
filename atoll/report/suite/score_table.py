"""The table as a paper prints it: rows are data and partition, columns methods, entries mean and spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from atoll.records import Cell, Results, When
from atoll.report.suite import prose
from atoll.report.suite.privacy_page import brief
from atoll.report.suite.scores import CellScore, best, competes, of_cell

Mark = Literal["best", "near", ""]


@dataclass(frozen=True)
class ScoreEntry:
    """One entry: its score, whether it is the best of its row or near it, and what a reader must know of it."""

    cell: Cell | None
    score: CellScore | None
    mark: Mark
    note: str  # "1 seed of 3", "2 of 3 seeds", "failed", "not run", or nothing
    why: str = ""  # the reason of a failure
    privacy: str = ""  # the epsilon that it holds, or that it holds none; nothing where no run has an account


@dataclass(frozen=True)
class ScoreRow:
    """One setting, with an entry for every method of the table."""

    path: tuple[str, ...]
    entries: Mapping[str, ScoreEntry]

    @property
    def name(self) -> str:
        """The row in one line."""
        return prose.row_name(self.path)


@dataclass(frozen=True)
class ScoreTable:
    """A block of the suite at the last or at the best round."""

    block: str
    when: When
    axes: tuple[str, ...]  # of the rows
    methods: tuple[str, ...]
    rows: tuple[ScoreRow, ...]
    places: int
    quirks: Mapping[str, str]  # a method or setting that repeats what was published on purpose, and what that is
    percent: bool = False

    @property
    def wins(self) -> dict[str, str]:
        """How many rows each method that may win has the best mean of; nothing where no row has a winner."""
        entries = [(method, entry) for row in self.rows for method, entry in row.entries.items()]
        if not any(entry.mark == "best" for _, entry in entries):
            return {}
        rivals = dict.fromkeys(method for method, entry in entries if entry.cell and competes(entry.cell))
        won = {method: [entry.mark for m, entry in entries if m == method].count("best") for method in rivals}
        return {method: f"{count} of {len(self.rows)}" for method, count in won.items()}

    def mean(self, entry: ScoreEntry) -> str:
        """The mean as text; without runs what there is instead."""
        return prose.number(entry.score.mean, self.places) if entry.score else entry.note

    def std(self, entry: ScoreEntry) -> str:
        """The spread over seeds as text, or nothing."""
        return self._spread(entry.score.std if entry.score else None)

    def interval(self, entry: ScoreEntry) -> str:
        """The 95 % t interval as text, or nothing."""
        found = entry.score
        if found is None or found.half is None or found.diverged:
            return ""
        low, high = found.mean - found.half, found.mean + found.half
        low, high = (max(low, 0.0), min(high, 100.0)) if self.percent else (low, high)
        return f"{prose.number(low, self.places)} to {prose.number(high, self.places)}"

    def _spread(self, value: float | None) -> str:
        return "" if value is None or not math.isfinite(value) else prose.number(value, self.places)


def table(results: Results, block: str, when: When) -> ScoreTable:
    """A block as a table; a cell that was never run has an entry too."""
    found = results.rows(block)
    methods = tuple(dict.fromkeys(method for cells in found.values() for method in cells))
    rows = tuple(ScoreRow(path, _entries(results, cells, methods, when)) for path, cells in found.items())
    quirks = {cell.oddity: cell.quirk for cells in found.values() for cell in cells.values() if cell.quirk}
    scores = [entry.score for row in rows for entry in row.entries.values() if entry.score]
    percent = results.scale == 100
    return ScoreTable(block, when, results.axes[:-1], methods, rows, decimals(percent, scores), quirks, percent)


def contest(results: Results, cells: Mapping[str, Cell], when: When) -> dict[str, CellScore]:
    """The scores of those cells of a row that may win it; a diverged one is among them, and loses."""
    found = {method: of_cell(cell, results, when) for method, cell in cells.items() if competes(cell)}
    return {method: one for method, one in found.items() if one}


def _entries(
    results: Results, cells: Mapping[str, Cell], methods: tuple[str, ...], when: When
) -> dict[str, ScoreEntry]:
    rivals = contest(results, cells, when)
    top = best(rivals, results.higher) if len(rivals) > 1 else []  # alone in a row, nobody wins
    near = [m for m, one in rivals.items() if any(one.meets(rivals[winner]) for winner in top)]
    marks: dict[str, Mark] = {**dict.fromkeys(near, "near"), **dict.fromkeys(top, "best")}  # type: ignore[dict-item]
    return {m: _entry(results, cells.get(m), when, marks.get(m, "")) for m in methods}


def _entry(results: Results, cell: Cell | None, when: When, mark: Mark) -> ScoreEntry:
    if cell is None:
        return ScoreEntry(None, None, "", prose.MISSING, "not part of the suite")
    if not cell.runs:
        return ScoreEntry(cell, None, "", "failed" if cell.failed else "not run", prose.why(cell))
    return ScoreEntry(cell, of_cell(cell, results, when), mark, _seeds(cell), prose.why(cell), brief(cell))


def _seeds(cell: Cell) -> str:
    """What must be said of the seeds, if anything."""
    n, wanted = len(cell.runs), cell.wanted
    if n == 1:
        return "1 seed" if wanted <= 1 else f"1 seed of {wanted}"
    return f"{n} of {wanted} seeds" if n < wanted else ""


def decimals(percent: bool, scores: Sequence[CellScore]) -> int:
    """Decimals that say something: two digits of the usual spread over seeds; in per cent 1 or 2.

    >>> decimals(True, [CellScore(88.0, 0.5, 1.2, 3)]), decimals(False, [CellScore(0.4, 0.002, 0.005, 3)])
    (2, 4)
    """
    spreads = [one.std for one in scores if one.std and math.isfinite(one.std)]
    sizes = spreads or [0.01 * abs(one.mean) for one in scores if one.mean and math.isfinite(one.mean)] or [1.0]
    low, high = (1, 2) if percent else (0, 6)
    return min(high, max(low, 1 - math.floor(math.log10(median(sizes)))))
