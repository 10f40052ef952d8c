"""Writes the costs that benchmarks/secure.py measured into a page, between its two marks.

python benchmarks/secure_table.py benchmarks/results/secure.json docs/secure-aggregation.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from secure import Cost

NAMES = {
    "additive-2": "additive, 2 splits",
    "additive-4": "additive, 4 splits",
    "secagg": "SecAgg",
    "secagg-active": "SecAgg, active server",
    "secagg_plus": "SecAgg+",
    "light_secagg": "LightSecAgg",
}
ON_PAGE = (1_000, 44_426, 1_000_000, 1_630_000)
HEAD = (
    "| protocol | clients | numbers | client ms | of it shares | server s | with 10 % lost | with 30 % lost "
    "| kB up | kB down |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
)
BEGIN, END = "<!-- costs: begin -->\n", "<!-- costs: end -->\n"


def short(x: float) -> str:
    return f"{x:,.0f}" if x >= 100 else f"{x:.1f}" if x >= 10 else f"{x:.3f}"


def page_row(rows: Sequence[Cost]) -> str:
    """One line of the page: the same work with nobody lost, a tenth, and three tenths."""
    best, whole = min(rows, key=lambda x: x.client_seconds), min(rows, key=lambda x: x.dropout)
    server = {round(x.dropout, 1): short(x.server_seconds) + " +" * ("+" in x.measured) for x in rows}
    kilobytes = (f"{x / 1e3:,.0f}" if x >= 1e5 else f"{x / 1e3:.1f}" for x in (whole.up_bytes, whole.down_bytes))
    cells = [NAMES[whole.protocol], f"{whole.clients:,}", f"{whole.parameters:,}", f"{1e3 * best.client_seconds:.1f}"]
    cells += [f"{1e3 * best.shares_seconds:.1f}", *(server.get(share, "") for share in (0.0, 0.1, 0.3)), *kilobytes]
    return "| " + " | ".join(cells) + " |\n"


def page_table(measured: Mapping[str, Any]) -> str:
    """What a file of costs says, for a page."""
    facts, groups = measured["made"], {}
    for cost in (Cost(**row) for row in measured["rows"]):
        groups.setdefault((cost.protocol, cost.clients, cost.parameters), []).append(cost)
    many = f"{facts['at_once']} cells at once, each" if facts["at_once"] > 1 else "cells one after the other,"
    where = (
        f"{facts['machine']}; {facts['date']}; `{facts['command']}`: {many} on one "
        f"thread and a physical core of its own; Python {facts['python']}, torch {facts['torch']}, "
        f"cryptography {facts['cryptography']}.\n\n"
    )
    return where + HEAD + "".join(page_row(rows) for key, rows in groups.items() if key[2] in ON_PAGE)


def write_page(page: Path, table: str) -> None:
    """Between the two marks."""
    text = page.read_text()
    head, rest = text.split(BEGIN)
    page.write_text(head + BEGIN + "\n" + table + "\n" + END + rest.split(END)[1])


if __name__ == "__main__":
    costs, page = map(Path, sys.argv[1:])
    write_page(page, page_table(json.loads(costs.read_text())))
