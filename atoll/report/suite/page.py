"""The page of a suite: one HTML file that opens offline, drawn from its results alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atoll.records import Cell, Results, Trace, When
from atoll.report import prose
from atoll.report.metrics import suite_metric
from atoll.report.render_html import fact_table, template
from atoll.report.settings import flatten
from atoll.report.suite import (
    beside_published,
    bytes_table,
    client_spread,
    curves,
    headline,
    pairwise,
    privacy_page,
    ranking,
    seconds_table,
    severity,
    tuning,
    worst_attack,
)
from atoll.report.suite.score_table import quirks, score_table
from atoll.report.text_table import TextCell, TextRow, TextTable, number_columns, row, text_columns

SHOWN_FIRST = 9  # rows whose curves are open; the others wait behind a click


def page(results: Results) -> str:
    """The whole page as text."""
    metric = suite_metric(results)
    parts: dict[str, Any] = {
        "worst_over": results.worst_over,
        "privacy": privacy_page.section(results),
        "paper": beside_published.comparison(results),
        "ranking": ranking.ranking(results),
        "pairs": pairwise.certainty(results),
        "clients": [(b, table) for b in results.blocks() if (table := client_spread.clients(results, b))],
        "sent": [(b, table) for b in results.blocks() if (table := bytes_table.sent(results, b))],
        "sent_published": bytes_table.published(results),
        "times": [(b, table) for b in results.blocks() if (table := seconds_table.decomposed(results, b))],
        "times_published": seconds_table.published(results),
        "secured": [(b, table) for b in results.blocks() if (table := seconds_table.protocols(results, b))],
        "worst": worst_attack.section(results),
        "severity": severity.severity_plots(results, curves.method_styles(results)),
        **_curves(results),
    }
    return template("suite").render(
        results=results,
        scope=headline.scope(results),
        lead=headline.lead(results),
        findings=_findings(parts),
        notes=[*privacy_page.alarms(results)[:1], *headline.notes(results)],
        sections=_sections(parts),
        unit=prose.first_up(metric.unit),
        better=metric.better,
        tables=[[(block, when, _scores(results, block, when)) for block in results.blocks()] for when in results.whens],
        budget=tuning.budget(results),
        costs=client_spread.costs_table(results),
        sensitivity=tuning.sensitivity(results),
        tried=tuning.tried_table(results),
        command=results.made.get("command"),
        facts=[(part, fact_table(rows)) for part, rows in facts(results.made)],
        runs=_runs(results),
        **parts,
    )  # fmt: skip


def _scores(results: Results, block: str, when: When) -> TextTable:
    notes = [f"{prose.first_up(suite_metric(results).unit)} at the {when} round."]
    notes += ["What is in italics repeats on purpose what was published."] if quirks(results, block) else []
    return replace(score_table(results, block, when), notes=tuple(notes), style="wide")


def _runs(results: Results) -> TextTable:
    note = (
        "The digest is that of the complete experiment. Runs of one seed are paired where their partition digests are "
        "equal."
    )
    heads = (*text_columns("cell"), *number_columns("seed"), *text_columns("settings"), *number_columns("last", "best"))
    rows = tuple(_run(results, cell, run) for cell in results.cells for run in cell.runs)
    digests = text_columns("experiment", "partition", kind="code")
    return TextTable((*heads, *digests, *text_columns("status")), rows, notes=(note,), style="told")


def _run(results: Results, cell: Cell, run: Trace) -> TextRow:
    values = (prose.number(value * results.scale, 2) for value in (run.last, run.best(results.higher)))
    digests = (TextCell(digest[:10], hint=digest) for digest in (run.digest, run.partition))
    return row(cell.name, run.seed, prose.settings(cell.settings), *values, *digests, run.status)


def _findings(parts: Mapping[str, Any]) -> list[str]:
    """What came out, in as few sentences as there are kinds of answer."""
    return [section.finding for key in ("ranking", "pairs", "paper") if (section := parts[key]) and section.finding]


def _sections(parts: Mapping[str, Any]) -> list[tuple[str, str]]:
    names = {
        "privacy": ("privacy", "Privacy"),
        "paper": ("paper", "Against the paper"),
        "worst": ("worst", f"The worst {parts['worst_over']}"),
        "sent": ("sent", "Bytes"),
        "times": ("times", "Virtual time"),
        "secured": ("secured", "What the server sees"),
        "ranking": ("wins", "Which method wins"),
        "pairs": ("pairs", "How sure"),
        "severity": ("severity", "By severity"),
        "curves": ("curves", "Learning curves"),
        "clients": ("clients", "Clients"),
    }
    present = [named for key, named in names.items() if parts[key]]
    return [("table", "The table"), *present, ("tuning", "Settings and cost"), ("made", "Where this comes from")]


def _curves(results: Results) -> dict[str, Any]:
    """The curves by kind of cost and block, of the first rows of every block; and what was left out."""
    styles = curves.method_styles(results)
    blocks = [block for block in results.blocks() if curves.curves(results, block, "rounds", styles)]
    most = max(3, curves.MOST // max(1, len(blocks)))
    drawn = [[(block, curves.curves(results, block, by, styles)[:most]) for block in blocks] for by in curves.BY]
    rows = sum(len(curves.curves(results, block, "rounds", styles)) for block in blocks)
    shown = sum(len(plots) for _, plots in drawn[0])
    entries = [(method, curves.swatch(number)) for method, number in styles.items()]
    left_out = f"{shown} of {rows} rows are drawn; results.json has all of them." if shown < rows else ""
    return {
        "curves": drawn if blocks else [], "legend_entries": entries, "left_out": left_out, "shown_first": SHOWN_FIRST
    }  # fmt: skip


def facts(made: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """What is known of versions and machine, table by table; single values first.

    >>> facts({"command": "atoll bench x", "date": "today", "versions": {"atoll": "0.1.0"}})
    [('made', [('date', 'today')]), ('versions', [('atoll', '0.1.0')])]
    """
    plain = [(key, str(value)) for key, value in made.items() if key != "command" and not isinstance(value, Mapping)]
    flat = {key: flatten(value) for key, value in made.items() if isinstance(value, Mapping)}
    tables = [(key, [(k, str(v)) for k, v in table.items() if v is not None]) for key, table in flat.items()]
    return ([("made", plain)] if plain else []) + [(key, rows) for key, rows in tables if rows]
