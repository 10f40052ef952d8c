"""What a cell reached over its seeds, in the scale in which it is shown; and who may be called the best of a row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from atoll.records import Cell, Results, When
from atoll.report import prose
from atoll.report.text_table import Mark
from atoll.stats import Estimate, t_interval


def by_seed(cell: Cell, results: Results, when: When) -> dict[int, float]:
    """The shown value of every seed."""
    return {seed: value * results.scale for seed, value in cell.by_seed(when, results.higher).items()}


def of_cell(cell: Cell, results: Results, when: When) -> Estimate | None:
    """The shown mean of a cell with its interval; None without runs."""
    values = list(by_seed(cell, results, when).values())
    return t_interval(values) if values else None


def competes(cell: Cell) -> bool:
    """Whether a cell may win: a single seed is no result, and a mistake repeated on purpose is no method."""
    return cell.quirk is None and len(cell.runs) > 1


def contest(results: Results, cells: Mapping[str, Cell], when: When) -> dict[str, Estimate]:
    """The scores of those cells of a row that may win it; a diverged one is among them, and loses."""
    scores = {method: of_cell(cell, results, when) for method, cell in cells.items() if competes(cell)}
    return {method: one for method, one in scores.items() if one}


def named_rows(results: Results) -> Iterator[tuple[str, Mapping[str, Cell]]]:
    """Every row of every block, with the block in its name where there are several."""
    many = len(results.blocks()) > 1
    for block in results.blocks():
        for path, cells in results.rows(block).items():
            yield f"{block}: {prose.row_name(path)}" if many else prose.row_name(path), cells


def best(scores: Mapping[str, Estimate], higher: bool) -> list[str]:
    """The methods with the best mean: one, or those with exactly the same.

    >>> best({"a": t_interval([1.0, 1.0]), "b": t_interval([2.0, 2.0])}, higher=True)
    ['b']
    """
    finite = {name: one.mean for name, one in scores.items() if not one.diverged}
    if not finite:
        return []
    top = (max if higher else min)(finite.values())
    return [name for name, mean in finite.items() if mean == top]


def marks(results: Results, cells: Mapping[str, Cell], when: When) -> dict[str, Mark]:
    """The best of a row, and those whose interval overlaps its own; alone in a row, nobody wins."""
    rivals = contest(results, cells, when)
    top = best(rivals, results.higher) if len(rivals) > 1 else []
    near = [m for m, one in rivals.items() if any(one.overlaps(rivals[winner]) for winner in top)]
    return {m: "best" if m in top else "near" for m in near}


def decimals(percent: bool, scores: Sequence[Estimate]) -> int:
    """Decimals that say something: two digits of the usual spread over seeds; in per cent 1 or 2.

    >>> decimals(True, [t_interval([88.0, 88.7])]), decimals(False, [t_interval([0.4, 0.402])])
    (2, 4)
    """
    spreads = [one.std for one in scores if one.std and math.isfinite(one.std)]
    sizes = spreads or [0.01 * abs(one.mean) for one in scores if one.mean and math.isfinite(one.mean)] or [1.0]
    low, high = (1, 2) if percent else (0, 6)
    return min(high, max(low, 1 - math.floor(math.log10(median(sizes)))))
