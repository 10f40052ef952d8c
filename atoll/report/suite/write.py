"""All files of a suite's folder, from its results."""

from __future__ import annotations

from pathlib import Path

from atoll.records import REPORT, Results, SuiteFolder, replace_text
from atoll.report.suite import exports
from atoll.report.suite.page import page


def write(results: Results, folder: Path) -> Path:
    """Write report.html, results.csv, table.md and table.tex, and results.json if it is missing; return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    suite = SuiteFolder(folder)
    if not suite.results_path.exists():
        suite.write(results)
    files = {
        "results.csv": exports.as_csv(results),
        "table.md": exports.as_markdown(results),
        "table.tex": exports.as_latex(results),
    }
    for name, text in files.items():
        replace_text(folder / name, text)
    return write_page(results, folder / REPORT)


def write_page(results: Results, out: Path) -> Path:
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(out, page(results))
    return out
