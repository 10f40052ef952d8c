"""A block of a suite as a paper prints it: rows are data and partition, columns methods, entries mean and spread."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from rich.table import Table as Printed

from atoll.records import SIMULATION, Cell, Results, When, cell_claims, shown_upper
from atoll.report import prose
from atoll.report.metrics import suite_metric
from atoll.report.render import rich_table
from atoll.report.suite.privacy_page import brief_claims
from atoll.report.suite.scores import competes, decimals, marks, of_cell
from atoll.report.text_table import Mark, TextCell, TextColumn, TextRow, TextTable, row, text_columns
from atoll.stats import Estimate

ABREAST = 5  # methods that stand beside each other in a narrow terminal


def score_table(results: Results, block: str, when: When, *, split: bool = False, brief: bool = False) -> TextTable:
    """A block at the last or the best round; a cell that was never run has an entry too.

    `split`: a column for every axis of a row's name. `brief`: entries as short as a terminal wants them.
    """
    rows, odd = results.rows(block), quirks(results, block)
    methods = list(dict.fromkeys(method for cells in rows.values() for method in cells))
    entry = partial(_entry, results, when, _places(results, block, when, brief), brief)
    lines = []
    for path, cells in rows.items():
        won = marks(results, cells, when)
        name = path if split else [_name(path, odd)]
        lines.append(row(*name, *(entry(cells.get(m), won.get(m, "")) for m in methods)))
    axes = results.axes[:-1] if split else [" / ".join(results.axes[:-1]) or "setting"]
    heads = [TextColumn(m, "score", hint=odd.get(m, ""), style="quirk" if m in odd else "") for m in methods]
    return TextTable((*text_columns(*axes), *heads), tuple(lines), foot=_wins(lines, rows.values(), methods))


def quirks(results: Results, block: str) -> dict[str, str]:
    """Methods or settings that repeat on purpose what was published, and what that is."""
    return {cell.oddity: cell.quirk for cell in results.cells if cell.block == block and cell.quirk}


def summary(results: Results, block: str) -> Printed:
    """A block for a terminal: settings by methods, or methods by settings where that is narrower."""
    cells = [cell for cell in results.cells if cell.block == block]
    table = score_table(results, block, "last", brief=True)
    if len(table.columns) - 1 > max(ABREAST, len(table.rows)):
        table = table.transposed(results.axes[-1])
    title = f"{results.titles.get(block) or block}: {suite_metric(results).heading(', last round')}"
    return rich_table(replace(table, title=title, notes=(*_seeds_said(cells), *_privacy_said(cells))))


def _name(path: Sequence[str], odd: Mapping[str, str]) -> TextCell:
    repeated = next((odd[value] for value in path if value in odd), "")
    return TextCell(prose.row_name(path), hint=repeated, style="quirk" if repeated else "")


def _places(results: Results, block: str, when: When, brief: bool) -> int:
    percent = results.scale == 100
    scores = [of_cell(cell, results, when) for cell in results.cells if cell.block == block]
    return 1 if brief and percent else decimals(percent, [score for score in scores if score])


def _entry(results: Results, when: When, places: int, brief: bool, cell: Cell | None, mark: Mark) -> TextCell:
    if cell is None:
        return TextCell(prose.MISSING, hint="not part of the suite", style="soft")
    score = of_cell(cell, results, when)
    if score is None:
        style = "soft" if brief and not cell.failed else "failed"
        state = "diverged" if cell.diverged else "failed" if cell.failed else "not run"
        return TextCell(state, detail="" if brief else prose.why(cell), style=style)
    seeds, same = _seeds(cell), score.all_equal
    style = " ".join(filter(None, ["quirk" if cell.quirk else "", "few" if score.n == 1 else ""]))
    return TextCell(
        prose.number(score.mean, places),
        "" if score.std is None or not math.isfinite(score.std) or same else prose.number(score.std, places),
        mark,
        detail="" if brief else _interval(score, places, results.scale == 100),
        remarks=tuple(
            filter(None, [seeds, prose.ALL_EQUAL if same and not brief else "", "" if brief else brief_claims(cell)])
        ),
        hint=prose.why(cell) if seeds else "",
        style=style,
        value=score.mean,
    )


def _interval(score: Estimate, places: int, percent: bool) -> str:
    """The 95 % t interval, cut where no share can be."""
    if score.low is None or score.high is None or score.diverged or score.all_equal:
        return ""
    low, high = (max(score.low, 0.0), min(score.high, 100.0)) if percent else (score.low, score.high)
    return f"{prose.number(low, places)} to {prose.number(high, places)}"


def _seeds(cell: Cell) -> str:
    """What must be said of the seeds, if anything."""
    n, wanted = len(cell.runs), cell.wanted
    if n == 1:
        return "1 seed" if wanted <= 1 else f"1 seed of {wanted}"
    return f"{n} of {wanted} seeds" if n < wanted else ""


def _wins(lines: Sequence[TextRow], rows: Collection[Mapping[str, Cell]], methods: Sequence[str]) -> TextRow | None:
    """How many rows each method that may win has the best mean of; nothing where no row has a winner."""
    columns = list(zip(*(line.cells[-len(methods) :] for line in lines), strict=True))
    won = [sum(cell.mark == "best" for cell in column) for column in columns]
    rivals = [any(m in cells and competes(cells[m]) for cells in rows) for m in methods]
    counts = (f"{n} of {len(lines)}" if may else "" for n, may in zip(won, rivals, strict=True))
    return row("best of its row", *counts) if any(won) else None


def _seeds_said(cells: Sequence[Cell]) -> list[str]:
    seeds = sorted({len(cell.runs) for cell in cells if cell.runs})
    if seeds in ([], [1]):
        return ["One seed: a single run, not a result. More: --seeds 3 --resume."] if seeds else ["No runs yet."]
    single = ["A single seed is a run, not a result."] if 1 in seeds else []
    return [f"± standard deviation over {' or '.join(map(str, seeds))} seeds; * best of its setting.", *single]


def _privacy_said(cells: Sequence[Cell]) -> list[str]:
    """In how many cells an epsilon holds, where any run has an account: each with its own words on the page."""
    claims = [cell_claims(cell) for cell in cells if cell.runs]
    spent = [max(c.epsilon or 0.0 for c in cell if c.holds) for cell in claims if any(c.holds for c in cell)]
    span = f" ({shown_upper(min(spent))} to {shown_upper(max(spent))})" if spent else ""
    sentences = [f"An epsilon holds in {len(spent)} of {prose.counted(len(claims), 'cell')}{span}: the page has each."]
    simulated = sum(any(c.kind == "simulates" for c in cell) for cell in claims)
    sentences += [f"{prose.counted(simulated, 'cell')}: {SIMULATION}."] if simulated else []
    return sentences if any(claims) else []
