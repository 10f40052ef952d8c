"""Reports: run folders in; a terminal table, one HTML file that opens offline, and figures out. Never torch.

    settings.py         a configuration, flat           seed_groups.py    runs that differ only in their seed
    metrics.py          what counts as better           estimates.py      means and intervals over seeds
    gains.py            gain over training alone        final_table.py    what was reached, and what it cost
    harmed.py           who loses by it
    notes.py            what a reader must know         provenance.py     what was run, with what, where
    privacy.py          what holds, beside audits       privacy_plots.py  figures of epsilon and noise
    theme.py            colours, and SVG for a page     plots.py          the figures
    prose.py            numbers and names as text       pictures.py       the figures of a partition
    text_table.py       a table of text                 render.py         it for a terminal, Markdown, LaTeX and CSV
    reaching.py         what it takes to get there      virtual_time.py   where virtual time goes, and who is last
    render_html.py      it for a page                   terminal.py       the summary of runs
    duckdb_relation.py  many records as one relation    html.py           the page
    hover.py            what figures say when pointed at   profile_page.py   where a round's time went
    reconstructions.py  what an attack made of updates   leakage_curves.py  its scores against what is varied

A folder that cannot be read raises `atoll.errors.RecordError`.
"""

from atoll.report.attack_table import group_attack
from atoll.report.duckdb_relation import table
from atoll.report.harmed import ClientGain, gains_by_client, harmed_sentence, harmed_table, table_of_harmed
from atoll.report.html import write
from atoll.report.leakage_curves import LeakageCurve, leakage_curves
from atoll.report.metrics import MetricInfo, known_metric, primary, suite_metric
from atoll.report.plots import Plot
from atoll.report.privacy import group_claims
from atoll.report.privacy_plots import epsilon_by_round
from atoll.report.profile_page import profile_page
from atoll.report.prose import MISSING, counted, first_up, listed, significant
from atoll.report.reconstructions import LeakagePoint, attack_page, leakage_plot, reconstructions
from atoll.report.render import rich_table
from atoll.report.render_html import fact_table, template
from atoll.report.security import group_level
from atoll.report.seed_groups import Group, group
from atoll.report.settings import differing, flatten, is_fingerprint, short, show
from atoll.report.terminal import summary, write_table
from atoll.report.text_table import TextCell, TextColumn, TextRow, TextTable, number_columns, row, text_columns
from atoll.report.theme import line_style as series_style
from atoll.report.theme import load_matplotlib

__all__ = [
    "MISSING",
    "ClientGain",
    "Group",
    "LeakageCurve",
    "LeakagePoint",
    "MetricInfo",
    "Plot",
    "TextCell",
    "TextColumn",
    "TextRow",
    "TextTable",
    "attack_page",
    "counted",
    "differing",
    "epsilon_by_round",
    "fact_table",
    "first_up",
    "flatten",
    "gains_by_client",
    "group",
    "group_attack",
    "group_claims",
    "group_level",
    "harmed_sentence",
    "harmed_table",
    "is_fingerprint",
    "known_metric",
    "leakage_curves",
    "leakage_plot",
    "listed",
    "load_matplotlib",
    "number_columns",
    "primary",
    "profile_page",
    "reconstructions",
    "rich_table",
    "row",
    "series_style",
    "short",
    "show",
    "significant",
    "suite_metric",
    "summary",
    "table",
    "table_of_harmed",
    "template",
    "text_columns",
    "write",
    "write_table",
]
