"""Reports: run folders in; a terminal table, one HTML file that opens offline, and figures out. Never torch.

    records.py    a run folder, read          duckdb_relation.py  many folders as one DuckDB relation
    settings.py   a configuration, flat       seed_groups.py      runs that differ only in their seed
    metrics.py    what counts as better       estimates.py        means and intervals over seeds
    gains.py      gain over training alone    final_table.py      what was reached, and what it cost
    notes.py      what a reader must know     provenance.py       what was run, with what, where
    privacy.py    what holds, beside audits   privacy_plots.py    figures of epsilon and noise
    theme.py      colours, and SVG for a page plots.py            the figures
    prose.py      numbers and names as text   text_table.py       a table of text
    render.py     a table for a terminal, Markdown, LaTeX and CSV; render_html.py for a page
    terminal.py   the summary of runs         html.py             the page

A folder that cannot be read raises `atoll.errors.RecordError`.
"""

from atoll.report.duckdb_relation import table
from atoll.report.html import write
from atoll.report.records import Clients, Record, read
from atoll.report.terminal import summary

__all__ = ["Clients", "Record", "read", "summary", "table", "write"]
