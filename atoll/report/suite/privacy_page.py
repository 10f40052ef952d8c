"""Privacy of a suite: what every cell holds, and what is paid for it: the metric against epsilon."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from atoll.records import (
    CLAIM_KINDS,
    SIMULATION,
    AttackBound,
    Cell,
    Claim,
    ClaimKind,
    Results,
    attack_bounds,
    cell_claims,
    claims,
    round_up,
    shown_upper,
)
from atoll.report import prose, theme
from atoll.report.metrics import suite_metric
from atoll.report.plots import Plot
from atoll.report.privacy import MEANING, NOT_COVERED, claim_texts, contradictions
from atoll.report.suite.curves import HEIGHT, MOST, WIDTH, method_styles
from atoll.report.suite.scores import of_cell
from atoll.report.text_table import TextCell, TextRow, TextTable, number_columns, row, text_columns
from atoll.stats import Estimate

NAMED = 3  # alarms that are shown one by one
_SAME = 1.01  # times: runs calibrated to one budget end a little below it, each by its own
COLUMNS = ("epsilon", "delta", "unit, adjacency", "sampler", "mechanism", "accountant")
TITLES: Mapping[ClaimKind, str] = {
    "client": "epsilon of a client",
    "example": "epsilon of an example",
    "simulates": "simulated epsilon (simulation only)",
}


@dataclass(frozen=True)
class Privacy:
    """What the section shows: sentences, alarms, a row for every claim of every cell, and figures."""

    told: tuple[str, ...]
    alarms: tuple[str, ...]
    claims: TextTable
    figures: tuple[tuple[str, tuple[Plot, ...], frozenset[str]], ...]  # by kind of epsilon, with the methods in them


@dataclass(frozen=True)
class Point:
    """A cell in a figure."""

    epsilon: float
    score: Estimate


@dataclass(frozen=True)
class EpsilonSeries:
    """Cells that differ in epsilon and in nothing else, and what the same is without a mechanism."""

    method: str  # "" where the method is what differs
    points: tuple[Point, ...]
    open: Estimate | None


def brief_claims(cell: Cell) -> str:
    """What an entry of the table says, or nothing: the rest stands in the section."""
    phrases = []
    for claim in cell_claims(cell):
        if claim.epsilon is None:
            phrases.append("not private" if claim.unit == "client" else f"not private ({claim.unit} level)")
        elif claim.kind == "simulates":
            phrases.append(f"simulates epsilon {shown_upper(claim.epsilon)}")
        else:
            phrases.append(
                f"epsilon {shown_upper(claim.epsilon)}" + ("" if claim.unit == "client" else f" ({claim.unit} level)")
            )
    return "; ".join(phrases)


def section(results: Results) -> Privacy | None:
    """The section; None where no run has an account."""
    claims = {place: cell_claims(cell) for place, cell in enumerate(results.cells)}
    if not any(claims.values()):
        return None
    rows = tuple(line for place, held in claims.items() for line in _rows(results.cells[place], held))
    heads = (*text_columns("cell"), *number_columns(*COLUMNS[:2]), *text_columns(*COLUMNS[2:], "audit"))
    held = TextTable(heads, rows, notes=(MEANING,), style="wide")
    return Privacy(tuple(_explanations(results, claims)), tuple(alarms(results)), held, tuple(_figures(results)))


def alarms(results: Results) -> list[str]:
    """Audits that contradict the account, loudly; of many the first, and how many there are."""
    every = [(f"{cell.name}, seed {run.seed}", run.privacy) for cell in results.cells for run in cell.runs]
    lines = contradictions([(name, claims(held), attack_bounds(held)) for name, held in every])
    many = [f"{len(lines)} audits contradict the accounted epsilon. The first: {lines[0]}"] if len(lines) > 1 else lines
    return many + lines[1:NAMED]


def _explanations(results: Results, claims: Mapping[int, Sequence[Claim]]) -> list[str]:
    held = [cell for cell in claims.values() if any(claim.holds for claim in cell)]
    simulated = [cell for cell in claims.values() if any(claim.kind == "simulates" for claim in cell)]
    ran = sum(bool(cell.runs) for cell in results.cells)
    sentences = [f"An epsilon holds in {len(held)} of {prose.counted(ran, 'cell')} that ran. {NOT_COVERED}"]
    if simulated:
        sentences.append(
            f"{prose.counted(len(simulated), 'cell')}: {SIMULATION}. It trains as noisily as a larger system."
        )
    unlike = [row for block in results.blocks() for row, cells in results.rows(block).items() if uneven(cells.values())]
    if unlike:
        sentences.append(
            f"In {prose.counted(len(unlike), 'row')} the methods do not hold the same epsilon: "
            "what is better there may only be less private."
        )
    tried = [c for p, c in claims.items() if any(x.holds for x in c) and len(results.cells[p].trials) > 1]
    if tried:
        sentences.append(
            f"In {prose.counted(len(tried), 'cell')} with an epsilon the settings were chosen among trials on the "
            "same clients: epsilon is that of the chosen run alone, and does not count the trials."
        )
    return sentences


def uneven(cells: Iterable[Cell]) -> bool:
    """Do these cells not hold the same epsilon?"""
    claims = [cell_claims(cell) for cell in cells if cell.runs]
    if len({tuple((c.kind, c.unit, c.epsilon is None) for c in one) for one in claims}) > 1:
        return True
    return any(_apart([c.epsilon for c in each if c.epsilon is not None]) for each in zip(*claims, strict=True))


def _apart(epsilons: Sequence[float]) -> bool:
    """Do they differ by more than what calibration leaves of one budget?"""
    return bool(epsilons) and max(epsilons) > _SAME * min(epsilons)


def _rows(cell: Cell, held: Sequence[Claim]) -> list[TextRow]:
    bounds = [one for run in cell.runs for one in attack_bounds(run.privacy) if one.epsilon is not None]
    return [_row(cell, claim, bounds) for claim in held]


def _row(cell: Cell, claim: Claim, bounds: Sequence[AttackBound]) -> TextRow:
    top = max((one for one in bounds if one.level == claim.kind), key=lambda one: one.epsilon or 0.0, default=None)
    many = f", the largest of {len(bounds)} seeds" if len(bounds) > 1 else ""
    audit = f"{top.name}: {top.said}{many}" if top else ""
    name, style = (f"{cell.name}: {SIMULATION}", "after") if claim.kind == "simulates" else (cell.name, "")
    if claim.epsilon is None:
        level = "" if claim.unit == "client" else f"{claim.unit} level: "
        remarks = (f"audit: {audit}",) if audit else ()
        return row(name, TextCell(f"{level}{claim.said}", remarks=remarks, span=len(COLUMNS) + 1), style=style)
    by_column = claim_texts(claim)
    return row(name, *(by_column[column] for column in COLUMNS), audit, style=style)


def _figures(results: Results) -> list[tuple[str, tuple[Plot, ...], frozenset[str]]]:
    """The metric against epsilon, where cells that are alike but for one axis differ in it."""
    drawn = []
    for kind in CLAIM_KINDS:
        parts = series(results, kind)
        plots = [_plot(results, kind, place, name, parts[name]) for place, name in enumerate(parts)]
        if plots:
            methods = frozenset(line.method for lines in parts.values() for line in lines if line.method)
            drawn.append((TITLES[kind], tuple(plots[:MOST]), methods))
    return drawn


def series(results: Results, kind: ClaimKind) -> dict[str, list[EpsilonSeries]]:
    """Every figure by the name of its row: a line for each method, or one line where methods are what differs."""
    spent = {place: _epsilon(cell, kind) for place, cell in enumerate(results.cells)}
    axis = _axis(results, spent)
    if axis is None:
        return {}
    figures: dict[str, list[EpsilonSeries]] = {}
    last = len(results.axes) - 1
    for (_, rest), places in _alike(results, axis).items():
        private = [(e, results.cells[p]) for p in places if (e := spent[p]) is not None]
        points = [Point(e, s) for e, cell in private if (s := of_cell(cell, results, "last")) and not s.diverged]
        plain = [of_cell(results.cells[p], results, "last") for p in places if not cell_claims(results.cells[p])]
        if _apart([point.epsilon for point in points]):
            row, method = (rest, "") if axis == last else (rest[:-1], rest[-1])
            line = EpsilonSeries(
                method, tuple(sorted(points, key=lambda p: p.epsilon)), next(filter(None, plain), None)
            )
            figures.setdefault(prose.row_name(row), []).append(line)
    return figures


def _epsilon(cell: Cell, kind: ClaimKind) -> float | None:
    return next((c.epsilon for c in cell_claims(cell) if c.kind == kind and c.epsilon), None)


def _alike(results: Results, axis: int) -> dict[tuple[str, tuple[str, ...]], list[int]]:
    """Cells of one block that differ only in this axis."""
    groups: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for place, cell in enumerate(results.cells):
        path = tuple(cell.path.values())
        groups.setdefault((cell.block, path[:axis] + path[axis + 1 :]), []).append(place)
    return groups


def _axis(results: Results, spent: Mapping[int, float | None]) -> int | None:
    """The axis along which epsilon differs the most; None where it does along none."""
    wide = {axis: _width(results, axis, spent) for axis in range(len(results.axes))}
    best = max(wide, key=lambda axis: wide[axis], default=None)
    return best if best is not None and wide[best] > math.log(_SAME) else None


def _width(results: Results, axis: int, spent: Mapping[int, float | None]) -> float:
    groups = [[e for p in places if (e := spent[p])] for places in _alike(results, axis).values()]
    return math.fsum(math.log(max(group) / min(group)) for group in groups if group)


def _plot(results: Results, kind: ClaimKind, place: int, name: str, lines: Sequence[EpsilonSeries]) -> Plot:
    description = "; ".join(
        " ".join(
            filter(None, [one.method, ", ".join(f"{p.score.mean:.4g} at {shown_upper(p.epsilon)}" for p in one.points)])
        )
        + (f", {one.open.mean:.4g} without a mechanism" if one.open else "")
        for one in lines
    )
    return Plot(
        f"privacy-{kind}-{place}",
        name,
        "",
        f"{suite_metric(results).unit} against {TITLES[kind]}, {name}: {description}.",
        lambda: _draw(results, kind, lines),
    )


def _draw(results: Results, kind: ClaimKind, lines: Sequence[EpsilonSeries]) -> Figure:
    figure, axes = theme.canvas(WIDTH, HEIGHT)
    styles = method_styles(results)
    for one in lines:
        style = theme.line_style(styles.get(one.method, 0))
        x, mean = [p.epsilon for p in one.points], [p.score.mean for p in one.points]
        half = [p.score.half or 0.0 for p in one.points]
        axes.errorbar(x, mean, half if any(half) else None, capsize=2, elinewidth=0.8, markersize=3.2, **style)
        if one.open and not one.open.diverged:
            axes.axhline(one.open.mean, color=style["color"], linewidth=0.8, linestyle=(0, (1, 2)))
    every = sorted({p.epsilon for one in lines for p in one.points})
    if every[-1] > 4 * every[0]:
        theme.logarithmic(axes, "x")
        labels = {f"{round_up(e, 2):g}": e for e in every}
        axes.xaxis.set_minor_locator(NullLocator())
        if len(labels) <= 8:
            axes.set_xticks(list(labels.values()), list(labels))
    axes.set_xlabel("simulated epsilon" if kind == "simulates" else TITLES[kind])
    axes.set_ylabel(suite_metric(results).unit)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    return figure
