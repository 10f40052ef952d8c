"""Reports: run folders in; a terminal table, one HTML file that opens offline, and figures out. Never torch.

    settings.py         a configuration, flat           seed_groups.py    runs that differ only in their seed
    metrics.py          what counts as better           estimates.py      means and intervals over seeds
    gains.py            gain over training alone        final_table.py    the final table
    notes.py            what a reader must know         provenance.py     what was run, with what, where
    privacy.py          what holds, beside audits       privacy_plots.py  figures of epsilon and noise
    theme.py            colours, and SVG for a page     plots.py          the figures
    pictures.py         the figures of a partition      terminal.py       the table for a terminal
    duckdb_relation.py  many records as one relation    html.py           the page

A folder that cannot be read raises `atoll.errors.RecordError`.
"""

from atoll.report.duckdb_relation import table
from atoll.report.final_table import significant
from atoll.report.html import write
from atoll.report.metrics import PREFERRED, MetricInfo, primary
from atoll.report.privacy_plots import epsilon_by_round
from atoll.report.seed_groups import Group, group
from atoll.report.settings import differing, flatten, short, show
from atoll.report.terminal import summary

__all__ = [
    "PREFERRED",
    "Group",
    "MetricInfo",
    "differing",
    "epsilon_by_round",
    "flatten",
    "group",
    "primary",
    "short",
    "show",
    "significant",
    "summary",
    "table",
    "write",
]
