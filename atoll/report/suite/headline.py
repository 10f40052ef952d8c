"""The head of the page: what was run, how much of it there is, and what a reader must know first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from atoll.records import FINISHED, Cell, Results
from atoll.report import prose
from atoll.report.metrics import suite_metric
from atoll.report.suite import tuning

NAMED = 6  # cells that a note names before it only counts


def scope(results: Results) -> str:
    """How much stands behind the page, in a line."""
    runs = [run for cell in results.cells for run in cell.runs]
    rounds = [run.rounds[-1] for run in runs if run.rounds]
    parts = [f"suite {results.suite}", f"{results.size} size", prose.counted(len(results.cells), "cell")]
    parts += [prose.counted(len(runs), "run")]
    parts += [f"{prose.span(rounds)} rounds"] if rounds else []
    return " · ".join([*parts, _seeds(results)])


def lead(results: Results) -> str:
    """What was run, in words."""
    rows = sum(len(results.rows(block)) for block in results.blocks())
    methods = list(dict.fromkeys(cell.method for cell in results.cells if cell.quirk is None))
    blocks, metric = len(results.blocks()), suite_metric(results)
    where = f"{prose.counted(rows, 'setting')} ({prose.listed(results.axes[:-1])})" if rows > 1 else "one setting"
    parts = f" in {blocks} parts" if blocks > 1 else ""
    return (
        f"{_methods(methods)} on {where}{parts}, {_seeds(results)}. "
        f"Measured: {metric.title} on test data, {metric.better}."
    )


def notes(results: Results) -> list[str]:
    """What a reader must know before the numbers."""
    return [note for note in _notes(results) if note]


def failed(results: Results) -> list[Cell]:
    """Cells without a run that were tried."""
    return [cell for cell in results.cells if not cell.runs and cell.failed]


def missing(results: Results) -> list[Cell]:
    """Cells without a run that were not tried, or not yet."""
    return [cell for cell in results.cells if not cell.runs and not cell.failed]


def short(results: Results) -> list[Cell]:
    """Cells with fewer seeds than the suite asks for, but some."""
    return [cell for cell in results.cells if 0 < len(cell.runs) < cell.wanted]


def _notes(results: Results) -> Iterator[str]:
    if results.deviates:
        yield f"This is the {results.size} size, not the published settings: {results.deviates}."
    elif results.size != "full":
        yield f"This is the {results.size} size: it shows that everything runs, not how good a method is."
    yield tuning.budget(results)
    yield _gaps(results)
    yield _few(results)
    quirks = {cell.oddity: cell.quirk for cell in results.cells if cell.quirk}
    for name, quirk in quirks.items():
        yield f"{name} repeats on purpose what was published ({quirk}). It is shown, and no ranking counts it."
    yield _unfinished(results)
    yield _unpaired(results)
    yield _stacked(results)


def _gaps(results: Results) -> str:
    """Failed and missing cells, counted; "none" is said too."""
    broken, absent = failed(results), missing(results)
    if not broken and not absent:
        return f"All {prose.counted(len(results.cells), 'cell')} have results." if len(results.cells) > 1 else ""
    sentences = []
    if broken:
        sentences.append(f"{prose.counted(len(broken), 'cell')} failed: {_named(broken, reasons=True)}.")
    if absent:
        sentences.append(f"{prose.counted(len(absent), 'cell')} not run: {_named(absent)}.")
    return " ".join(sentences)


def _few(results: Results) -> str:
    few = short(results)
    if not few:
        return ""
    return (
        f"{prose.counted(len(few), 'cell has', 'cells have')} fewer seeds than asked for: {_named(few, reasons=True)}. "
        "A single seed is shown, and never called the best."
    )


def _unfinished(results: Results) -> str:
    odd = [(cell, run) for cell in results.cells for run in cell.runs if run.status != FINISHED]
    if not odd:
        return ""
    listed = ", ".join(f"{cell.name} seed {run.seed} ({run.status})" for cell, run in odd[:NAMED])
    more = f" and {len(odd) - NAMED} more" if len(odd) > NAMED else ""
    return f"{prose.counted(len(odd), 'run')} ended otherwise than planned: {listed}{more}."


def _unpaired(results: Results) -> str:
    """Rows in which one seed did not give all methods the same partition."""
    rows = [row for block in results.blocks() for row, cells in results.rows(block).items() if not paired(cells)]
    if not rows:
        return ""
    return (
        f"Not paired: in {prose.listed(map(prose.row_name, rows[:NAMED]))} a seed did not give every method the same "
        "partition, so differences there are wider than they look."
    )


def paired(cells: Mapping[str, Cell]) -> bool:
    """Whether runs of one seed were given the same partition by every method of a row."""
    seen: dict[int, set[str]] = {}
    for cell in cells.values():
        for run in cell.runs:
            seen.setdefault(run.seed, set()).add(run.partition)
    return all(len(partitions - {""}) <= 1 for partitions in seen.values())


def _stacked(results: Results) -> str:
    stacks = sorted({run.together for cell in results.cells for run in cell.runs if run.together > 1})
    if not stacks:
        return ""
    return (
        f"Some runs were computed side by side, {prose.listed(map(str, stacks))} as one stack. Their seconds are those "
        "of the stack divided by its runs: what a run cost, not how long it would take alone."
    )


def _methods(names: Sequence[str]) -> str:
    return prose.listed(names) if len(names) <= 6 else prose.counted(len(names), "method")


def _seeds(results: Results) -> str:
    counts = [len(cell.runs) for cell in results.cells if cell.runs]
    if not counts:
        return "no seeds yet"
    return "1 seed, no interval" if set(counts) == {1} else f"{prose.span(counts)} seeds each"


def _named(cells: Sequence[Cell], reasons: bool = False) -> str:
    names = [f"{cell.name}{_reason(cell) if reasons else ''}" for cell in cells[:NAMED]]
    return ", ".join(names) + (f" and {len(cells) - NAMED} more" if len(cells) > NAMED else "")


def _reason(cell: Cell) -> str:
    return f" ({prose.why(cell)})" if cell.failed else ""
