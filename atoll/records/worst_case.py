"""The worst over an axis: what a method has left under the worst attack, and with its best setting against that.

A grid is the cells that differ in the method and in one other axis alone: attacks by defences at one share of malicious
clients. Guerraoui et al. (ByzFL, 2025) judge a defence by its worst attack, and choose its setting by that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atoll.records.cells import Cell, Results

_SETTING = re.compile(r"(.+)\([^()]*\)")


@dataclass(frozen=True)
class WorstCase:
    """The value of the axis under which a method is worst, and what it has there; NaN: it diverged."""

    under: str
    value: float


@dataclass(frozen=True)
class BestSetting:
    """Of the settings of a method the one whose worst case is least bad."""

    method: str
    worst: WorstCase


@dataclass(frozen=True)
class ScoreGrid:
    """The mean over seeds at the last round, under every value of the axis (rows) for every method (columns).

    NaN where a seed diverged. What was not run, or failed otherwise, is not there.
    """

    at: tuple[str, ...]  # the values of the other axes
    under: tuple[str, ...]
    methods: tuple[str, ...]
    values: Mapping[tuple[str, str], float]  # (under, method)

    def column(self, method: str) -> dict[str, float]:
        """What one method has, by the axis."""
        return {under: self.values[under, method] for under in self.under if (under, method) in self.values}


def grids(results: Results) -> list[ScoreGrid]:
    """A grid for every combination of the other axes, over all blocks; none where the suite names no axis."""
    if results.worst_over is None:
        return []
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in results.cells:
        at = tuple(v for axis, v in list(cell.path.items())[:-1] if axis != results.worst_over)
        groups.setdefault(at, []).append(cell)
    return [_grid(results, at, groups[at]) for at in sorted(groups, key=_numbers_in_order)]


def _grid(results: Results, at: tuple[str, ...], cells: Sequence[Cell]) -> ScoreGrid:
    axis = str(results.worst_over)
    known = {(c.path[axis], c.method): value for c in cells if (value := _value(results, c)) is not None}
    under, methods = (dict.fromkeys(key[i] for key in known) for i in (0, 1))
    return ScoreGrid(at, tuple(under), tuple(methods), known)


def _value(results: Results, cell: Cell) -> float | None:
    """None where there is nothing to show; a mean in which a seed diverged is none."""
    if cell.diverged:
        return math.nan
    return math.fsum(run.last for run in cell.runs) / len(cell.runs) * results.scale if cell.runs else None


def _numbers_in_order(at: tuple[str, ...]) -> tuple[tuple[str, float, str], ...]:
    """5 % before 10 %, whichever block comes first.

    >>> sorted([("a", "10 %"), ("a", "5 %")], key=_numbers_in_order)
    [('a', '5 %'), ('a', '10 %')]
    """
    numbers = [re.match(r"\d+(?:\.\d+)?", name) for name in at]
    return tuple(("", float(n[0]), name) if n else (name, 0.0, name) for n, name in zip(numbers, at, strict=True))


def worst_case(column: Mapping[str, float], higher: bool) -> WorstCase | None:
    """The worst of a column: what diverged before all numbers, the first of equals; None of an empty one.

    >>> worst_case({"alie": 80.0, "ipm": 12.5}, higher=True)
    WorstCase(under='ipm', value=12.5)
    """
    if not column:
        return None
    under = min(column, key=lambda name: _goodness(column[name], higher))
    return WorstCase(under, column[under])


def best_settings(worst: Mapping[str, WorstCase], higher: bool) -> dict[str, BestSetting]:
    """By family of methods, dnc(1) and dnc(1.5), the one whose worst case is least bad; the first of equals."""
    best: dict[str, BestSetting] = {}
    for method, case in worst.items():
        there = best.get(family(method))
        if there is None or _goodness(case.value, higher) > _goodness(there.worst.value, higher):
            best[family(method)] = BestSetting(method, case)
    return best


def worst_by_method(grid: ScoreGrid, higher: bool) -> dict[str, WorstCase]:
    """The worst case of every method of a grid."""
    cases = {method: worst_case(grid.column(method), higher) for method in grid.methods}
    return {method: case for method, case in cases.items() if case is not None}


def family(method: str) -> str:
    """What a method is called without its setting.

    >>> family("dnc(1.5)"), family("nnm, trimmed_mean")
    ('dnc', 'nnm, trimmed_mean')
    """
    named = _SETTING.fullmatch(method)
    return named[1] if named else method


def _goodness(value: float, higher: bool) -> float:
    return -math.inf if math.isnan(value) else value if higher else -value
