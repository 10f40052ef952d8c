"""The page of a suite: one HTML file that opens offline, drawn from its results alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from atoll.records import Results
from atoll.report.final_table import significant
from atoll.report.html import environment
from atoll.report.suite import (
    beside_published,
    client_spread,
    curves,
    headline,
    pairwise,
    privacy_page,
    prose,
    ranking,
    tuning,
)
from atoll.report.suite.score_table import table

SHOWN_FIRST = 9  # rows whose curves are open; the others wait behind a click


def page(results: Results) -> str:
    """The whole page as text."""
    parts: dict[str, Any] = {
        "privacy": privacy_page.section(results),
        "paper": beside_published.comparison(results),
        "ranking": ranking.ranking(results),
        "pairs": pairwise.certainty(results),
        "clients": _clients(results),
        **_curves(results),
    }
    return environment().get_template("suite.html.j2").render(
        results=results,
        scope=headline.scope(results),
        lead=headline.lead(results),
        findings=_findings(parts),
        notes=[*privacy_page.alarms(results)[:1], *headline.notes(results)],
        sections=_sections(parts),
        unit=prose.first_up(prose.unit(results)),
        better=prose.better(results),
        tables=[[table(results, block, when) for block in results.blocks()] for when in ("last", "best")],
        budget=tuning.budget(results),
        costs=client_spread.costs(results),
        stack_note=_stack_note(results),
        sensitivity=tuning.sensitivity(results),
        tried=tuning.tried(results),
        command=results.made.get("command"),
        facts=facts(results.made),
        runs=[(cell, run) for cell in results.cells for run in cell.runs],
        significant=significant,
        number=prose.number,
        say_settings=prose.settings,
        **parts,
    )  # fmt: skip


def _findings(parts: Mapping[str, Any]) -> list[str]:
    """What came out, in as few sentences as there are kinds of answer."""
    return [found.finding for key in ("ranking", "pairs", "paper") if (found := parts[key]) and found.finding]


def _sections(parts: Mapping[str, Any]) -> list[tuple[str, str]]:
    names = {
        "privacy": ("privacy", "Privacy"),
        "paper": ("paper", "Against the paper"),
        "ranking": ("wins", "Which method wins"),
        "pairs": ("pairs", "How sure"),
        "curves": ("curves", "Learning curves"),
        "clients": ("clients", "Clients"),
    }
    found = [named for key, named in names.items() if parts[key]]
    return [("table", "The table"), *found, ("tuning", "Settings and cost"), ("made", "Where this comes from")]


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


def _clients(results: Results) -> list[tuple[str, tuple[str, ...], list[client_spread.Spread]]]:
    found = [(block, client_spread.clients(results, block)) for block in results.blocks()]
    return [(block, _methods(rows), rows) for block, rows in found if rows]


def _methods(rows: Sequence[client_spread.Spread]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(method for row in rows for method in row.entries))


def _stack_note(results: Results) -> str:
    said = "Seconds of drawing clients, training, server and record; evaluation is not counted."
    stacked = any(run.together > 1 for cell in results.cells for run in cell.runs)
    shared = (
        " Of runs that shared a stack of k, a k-th of the stack's seconds: what a run cost, not what it takes alone."
    )
    return said + (shared if stacked else "")


def facts(made: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """What is known of versions and machine, table by table; single values first.

    >>> facts({"command": "atoll bench x", "date": "today", "versions": {"atoll": "0.1.0"}})
    [('made', [('date', 'today')]), ('versions', [('atoll', '0.1.0')])]
    """
    plain = [(key, str(value)) for key, value in made.items() if key != "command" and not isinstance(value, Mapping)]
    tables = [(key, list(_flat(value))) for key, value in made.items() if isinstance(value, Mapping)]
    return ([("made", plain)] if plain else []) + [(key, rows) for key, rows in tables if rows]


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        elif value is not None:
            yield f"{before}{key}", str(value)
