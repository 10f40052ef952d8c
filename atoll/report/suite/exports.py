"""Files for other programs and for papers: results.csv, table.md, table.tex."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from atoll.records import Cell, Results, Trace, When, claims
from atoll.report import prose
from atoll.report.metrics import suite_metric
from atoll.report.render import csv, latex, literal, markdown, one_line
from atoll.report.suite import bytes_table, seconds_table, worst_attack
from atoll.report.suite.score_table import quirks, score_table
from atoll.report.text_table import TextTable, row, text_columns

RUN = (
    *("settings", "seed", "last", "best", "bytes", "seconds", "together"),
    *("digest", "partition_digest", "status", "quirk"),
)
PRIVACY = ("privacy_epsilon", "privacy_delta", "privacy_unit", "privacy")  # where any run has an account
WHENS: dict[When, str] = {"last": "last round", "best": "best round (chosen on the test data)"}


def as_csv(results: Results) -> str:
    """One line per run; values as they were measured (not scaled), seconds of one run's share of its stack."""
    accounted = any(run.privacy for cell in results.cells for run in cell.runs)
    heads = ["block", *results.axes, *RUN, *(PRIVACY if accounted else ())]
    rows = (
        row(cell.block, *cell.path.values(), *_run(results, cell, run), *(_privacy(run) if accounted else ()))
        for cell in results.cells
        for run in cell.runs
    )
    return csv(TextTable(text_columns(*heads), tuple(rows)))


def as_markdown(results: Results) -> str:
    """Both tables of every block, for a README or a web page."""
    parts = [f"# {literal(results.title)}", _legend(results), *map(markdown, tables(results))]
    return "\n\n".join(parts) + "\n"


def as_latex(results: Results) -> str:
    """Both tables of every block, for a paper: \\usepackage{booktabs}, then \\input."""
    head = [one_line(results.title), one_line(_legend(results)), r"Needs \usepackage{booktabs}."]
    return "\n\n".join(["\n".join(f"% {line}" for line in head), *map(latex, tables(results))]) + "\n"


def tables(results: Results) -> Iterator[TextTable]:
    """Every block at the last and the best round, what it sent, how long it took, who saw it; then the worst."""
    for block in results.blocks():
        for when in results.whens:
            table = score_table(results, block, when, split=True)
            yield replace(table, title=f"{block}, {WHENS[when]}", notes=tuple(_notes(results, block)))
        if sent := bytes_table.sent(results, block):
            yield replace(sent, title=f"{block}, bytes")
        if times := seconds_table.decomposed(results, block):
            yield replace(times, title=f"{block}, virtual seconds")
        if secured := seconds_table.protocols(results, block):
            yield replace(secured, title=f"{block}, what the server sees")
    if worst := worst_attack.section(results):
        yield replace(worst.worst, title=f"The worst {results.worst_over}")
        if worst.best:
            yield replace(worst.best, title=f"The best setting against the worst {results.worst_over}")


def _run(results: Results, cell: Cell, run: Trace) -> list[object]:
    settings = json.dumps(dict(cell.settings), sort_keys=True) if cell.settings else ""
    costs = [run.bytes[-1] if run.bytes else "", run.seconds[-1] / run.together if run.seconds else "", run.together]
    values: list[object] = [settings, run.seed, run.last, run.best(results.higher), *costs]
    return [*values, run.digest, run.partition, run.status, cell.quirk or ""]


def _privacy(run: Trace) -> list[object]:
    """The epsilon of the run itself, and all that it says."""
    run_claims = claims(run.privacy)
    first = next((claim for claim in run_claims if claim.holds), None)
    first_columns = ["", "", ""] if first is None else [first.epsilon, first.delta, first.unit]
    return [*first_columns, "; ".join(claim.said for claim in run_claims)]


def _legend(results: Results) -> str:
    tuned_on = {"validation": "Settings chosen on validation data.", "paper": "Settings chosen on the test data."}
    metric = suite_metric(results)
    return (
        f"{prose.first_up(metric.unit)}, {metric.better}: mean ± standard deviation over seeds. "
        f"{tuned_on.get(results.tuning, 'Settings as given.')} The best of a row is bold; marked ≈ (underlined) are "
        "those whose 95 % interval overlaps the best one's."
    )


def _notes(results: Results, block: str) -> Iterator[str]:
    for name, quirk in quirks(results, block).items():
        yield f"{name}: repeats on purpose what was published ({quirk})."
    for path, cells in results.rows(block).items():
        for method, cell in cells.items():
            if not cell.runs:
                why = f" ({prose.why(cell)})" if cell.failed else ""
                yield f"{prose.row_name(path)}, {method}: {'failed' if cell.failed else 'not run'}{why}."
