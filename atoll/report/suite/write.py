"""All files of a suite's folder, from its results."""

from __future__ import annotations

from pathlib import Path

from atoll import records as room
from atoll.records import Results
from atoll.report.html import put
from atoll.report.suite import exports
from atoll.report.suite.page import page


def write(results: Results, folder: Path) -> Path:
    """Write report.html, results.csv, table.md and table.tex, and results.json if it is missing; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "results.json").exists():
        room.write(results, folder / "results.json")
    texts = {
        "results.csv": exports.as_csv(results),
        "table.md": exports.as_markdown(results),
        "table.tex": exports.as_latex(results),
    }
    for name, text in texts.items():
        put(folder / name, text.encode("utf-8"))
    return write_page(results, folder / "report.html")


def write_page(results: Results, out: Path) -> Path:
    """Write the page alone."""
    out.parent.mkdir(parents=True, exist_ok=True)
    put(out, page(results).encode("utf-8"))
    return out
