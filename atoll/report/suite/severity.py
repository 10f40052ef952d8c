"""The metric as a function of a condition: rows whose names differ in one number, such as dropouts(0.2)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from atoll.records import Cell, Floats, Results
from atoll.report import theme
from atoll.report.metrics import suite_metric
from atoll.report.plots import Plot
from atoll.stats import t_interval

FEWEST = 3  # numbers that make a function
WIDTH, HEIGHT = 3.4, 2.2  # inches
_NAME = re.compile(r"(.*)\((-?\d+(?:\.\d+)?)\)")


@dataclass(frozen=True)
class SeverityLine:
    """One method: the last value, mean over seeds, by the number; half widths are NaN for a single seed."""

    method: str
    x: Floats
    mean: Floats
    half: Floats


def severity_plots(results: Results, styles: Mapping[str, int]) -> list[Plot]:
    """A figure for every block that is one family of rows, with at least three numbers."""
    return [
        _plot(results, block, number, stem, lines, styles)
        for block in results.blocks()
        for number, (stem, lines) in enumerate(_families(results, block))
    ]


def _families(results: Results, block: str) -> list[tuple[str, list[SeverityLine]]]:
    by_stem: dict[str, dict[float, Mapping[str, Cell]]] = {}
    for row, cells in results.rows(block).items():
        numbered = split_name(row)
        if numbered is None:
            return []  # a table of other things: its rows are no function
        by_stem.setdefault(numbered[0], {})[numbered[1]] = cells
    if len(by_stem) > 1:
        return []
    found = [(stem, _lines(results, rows)) for stem, rows in by_stem.items() if len(rows) >= FEWEST]
    return [(stem, lines) for stem, lines in found if lines]


def split_name(row: Sequence[str]) -> tuple[str, float] | None:
    """What a row is called, and its number; None where not exactly one of its names has one.

    >>> split_name(("digits", "dropouts(0.2)")), split_name(("iid",))
    (('digits / dropouts', 0.2), None)
    """
    matches = [_NAME.fullmatch(name) for name in row]
    numbers = [match for match in matches if match]
    if len(numbers) != 1:
        return None
    words = [match[1] if match else name for name, match in zip(row, matches, strict=True)]
    return " / ".join(words), float(numbers[0][2])


def _lines(results: Results, rows: Mapping[float, Mapping[str, Cell]]) -> list[SeverityLine]:
    methods = list(dict.fromkeys(method for cells in rows.values() for method in cells))
    lines = []
    for method in methods:
        points = [
            (x, t_interval([run.last * results.scale for run in rows[x][method].runs]))
            for x in sorted(rows)
            if method in rows[x] and rows[x][method].runs
        ]
        if len(points) >= FEWEST:
            halves = [np.nan if e.half is None else e.half for _, e in points]
            columns = (np.array(column) for column in ([x for x, _ in points], [e.mean for _, e in points], halves))
            lines.append(SeverityLine(method, *columns))
    return lines


def _plot(
    results: Results, block: str, number: int, stem: str, lines: Sequence[SeverityLine], styles: Mapping[str, int]
) -> Plot:
    said = "; ".join(f"{one.method} from {one.mean[0]:.4g} to {one.mean[-1]:.4g}" for one in lines)
    name, unit = f"severity-{results.blocks().index(block)}-{number}", suite_metric(results).unit
    alt = f"{unit} against {stem}, from {lines[0].x[0]:g} to {lines[0].x[-1]:g}: {said}."
    title = results.titles.get(block, stem) if number == 0 else stem
    return Plot(name, title, "", alt, lambda: _draw(lines, stem, unit, styles))


def _draw(lines: Sequence[SeverityLine], stem: str, unit: str, styles: Mapping[str, int]) -> Figure:
    figure, axes = theme.canvas(WIDTH, HEIGHT)
    for one in lines:
        axes.errorbar(one.x, one.mean, one.half, capsize=2, markersize=3.2, **theme.line_style(styles[one.method]))
    numbers = np.unique(np.concatenate([one.x for one in lines]))
    if numbers[0] > 0 and numbers[-1] > 20 * numbers[0]:
        theme.logarithmic(axes, "x")
    axes.set_xlabel(stem)
    axes.set_ylabel(unit)
    return figure
