"""The report as one HTML file that opens offline, and its figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from atoll.errors import RecordError
from atoll.records import Record, read_runs, replace_bytes, replace_text
from atoll.report import prose, provenance, virtual_time
from atoll.report.attack_table import attack_table
from atoll.report.certificates import certificate_plots, certificate_table
from atoll.report.client_table import client_table
from atoll.report.estimates import curve
from atoll.report.final_table import Column, final, page_table
from atoll.report.graph_picture import graph_plots
from atoll.report.harmed import harmed_table
from atoll.report.metrics import MetricInfo, central, primary
from atoll.report.notes import lead, notes
from atoll.report.notes import title as worded_title
from atoll.report.pictures import bubbles
from atoll.report.plots import Plot, plots
from atoll.report.privacy import MEANING, NOT_COVERED, alarms, section
from atoll.report.privacy_plots import spending
from atoll.report.reaching import reaching_table
from atoll.report.render_html import fact_table, template
from atoll.report.security import insecure_alarms, security_section
from atoll.report.seed_groups import Group, group
from atoll.report.text_table import TextTable, number_columns, row, text_columns
from atoll.report.virtual_time import virtual_plots


def write(
    folders: Sequence[Path],
    out: Path,
    figures: Sequence[Literal["png", "pdf"]] = (),
    title: str | None = None,
    metric: str | None = None,
) -> Path:
    """Write the report to `out`, and each figure beside it as `<stem>-<figure>.png` or `.pdf`; return `out`."""
    unknown = [kind for kind in figures if kind not in ("png", "pdf")]
    if unknown:
        raise RecordError(f"report.figures: {unknown[0]!r} cannot be written. Use 'png' or 'pdf'.")
    records = read_runs(folders)
    groups = group(records)
    lead_metric = primary(records, metric)
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(out, page(records, groups, lead_metric, title))
    for plot in _figures(groups, lead_metric) if figures else []:
        for kind in figures:
            replace_bytes(out.with_name(f"{out.stem}-{plot.name}.{kind}"), plot.picture(kind))
    return out


def page(records: Sequence[Record], groups: Sequence[Group], metric: MetricInfo, title: str | None = None) -> str:
    """The whole page as text."""
    table = final(groups, metric)
    used = [record for one in groups for record in one.records]
    return template("report").render(
        title=title or worded_title(groups),
        scope=_scope(groups),
        lead=lead(table),
        notes=[*alarms(groups), *insecure_alarms(groups), *notes(records, groups, table)],
        privacy=section(groups),
        privacy_words=(MEANING, NOT_COVERED),
        security=security_section(groups),
        attack=attack_table(groups),
        certificate=certificate_table(groups),
        columns=table.columns,
        table=page_table(table),
        others=_others(groups),
        reaching=reaching_table(groups, metric),
        virtual_time=virtual_time.section(groups),
        clients=client_table(groups, metric),
        harmed=harmed_table(groups, metric),
        plots=_figures(groups, metric),
        different=provenance.different(groups),
        shared=provenance.shared(groups),
        configs=provenance.configs(groups),
        runs=provenance.runs(groups),
        facts=[(part, fact_table(rows)) for part, rows in provenance.facts(used)],
        written_by=sorted({str(record.run.get("atoll", "unknown")) for record in used}),
    )  # fmt: skip


def _figures(groups: Sequence[Group], metric: MetricInfo) -> list[Plot]:
    """What came of the runs, what they spent and, where it was recorded, what the clients of the first one hold."""
    first = next((r for one in groups for r in one.records if r.run.get("label_counts")), None)
    held = [] if first is None else [_classes(first)]
    return [
        *plots(groups, metric),
        *certificate_plots(groups),
        *virtual_plots(groups, metric),
        *graph_plots(groups, metric),
        *spending(groups, metric),
        *held,
    ]


def _classes(record: Record) -> Plot:
    names = list(record.client_names.values())
    return bubbles(np.asarray(record.run["label_counts"], np.int64), clients=names)


def _scope(groups: Sequence[Group]) -> str:
    """How much stands behind the figures, in a line."""
    runs = sum(len(one.records) for one in groups)
    seeds = sorted({seed for one in groups for seed in one.seeds})
    rounds = prose.span(record.rounds[-1]["round"] for one in groups for record in one.records)
    seeds_text = "1 seed, no interval" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    counts = [prose.counted(len(groups), "group"), prose.counted(runs, "run")]
    return " · ".join([*counts, f"{rounds} round{'' if rounds == '1' else 's'}", seeds_text])


def _others(groups: Sequence[Group]) -> TextTable | None:
    """Every plain number of the record at the last round, by group."""
    keys = dict.fromkeys(key for one in groups for record in one.records for key in central(record))
    plain = Column("", "", "", "")
    by_key = {key: [curve(one, key).last for one in groups] for key in [*keys, "train_loss"]}
    rows = tuple(row(key, *map(plain.cell, cells)) for key, cells in by_key.items() if any(cells))
    heads = (*text_columns("recorded", kind="code"), *number_columns(*(group.name for group in groups)))
    return TextTable(heads, rows, style="wide") if rows else None
