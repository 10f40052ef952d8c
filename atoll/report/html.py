"""The report as one HTML file that opens offline, and its figures as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from atoll.errors import RecordError
from atoll.records import Record, read_runs, replace_bytes, replace_text
from atoll.report import provenance
from atoll.report.estimates import curve
from atoll.report.final_table import Column, final
from atoll.report.metrics import MetricInfo, central, primary
from atoll.report.notes import lead, notes
from atoll.report.notes import title as worded_title
from atoll.report.pictures import bubbles
from atoll.report.plots import Plot, plots
from atoll.report.privacy import COLUMNS, MEANING, NOT_COVERED, alarms, section
from atoll.report.privacy_plots import spending
from atoll.report.seed_groups import Group, group

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


def write(
    folders: Sequence[Path], out: Path, figures: Sequence[Literal["png", "pdf"]] = (), title: str | None = None
) -> Path:
    """Write the report to `out`, and each figure beside it as `<stem>-<figure>.png` or `.pdf`; return `out`."""
    unknown = [kind for kind in figures if kind not in ("png", "pdf")]
    if unknown:
        raise RecordError(f"report.figures: {unknown[0]!r} cannot be written. Use 'png' or 'pdf'.")
    records = read_runs(folders)
    groups = group(records)
    metric = primary(records)
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_text(out, page(records, groups, metric, title))
    for plot in _figures(groups, metric) if figures else []:
        for kind in figures:
            replace_bytes(out.with_name(f"{out.stem}-{plot.name}.{kind}"), plot.picture(kind))
    return out


def page(records: Sequence[Record], groups: Sequence[Group], metric: MetricInfo, title: str | None = None) -> str:
    """The whole page as text."""
    table = final(groups, metric)
    used = [record for one in groups for record in one.records]
    return environment().get_template("report.html.j2").render(
        title=title or worded_title(groups),
        scope=_scope(groups),
        lead=lead(table),
        notes=[*alarms(groups), *notes(records, groups, table)],
        privacy=section(groups),
        privacy_columns=COLUMNS,
        privacy_words=(MEANING, NOT_COVERED),
        metric=metric,
        groups=groups,
        table=table,
        spans=_spans(table.columns),
        several=any(len(one.records) > 1 for one in groups),
        others=_others(groups),
        plots=[(plot, plot.svg()) for plot in _figures(groups, metric)],
        different=provenance.different(groups),
        shared=provenance.shared(groups),
        configs=provenance.configs(groups),
        runs=provenance.runs(groups),
        facts=provenance.facts(used),
        written_by=sorted({str(record.run.get("atoll", "unknown")) for record in used}),
    )  # fmt: skip


def _figures(groups: Sequence[Group], metric: MetricInfo) -> list[Plot]:
    """What came of the runs, what they spent and, where it was recorded, what the clients of the first one hold."""
    first = next((r for one in groups for r in one.records if r.run.get("label_counts")), None)
    held = [] if first is None else [bubbles(np.asarray(first.run["label_counts"], np.int64))]
    return [*plots(groups, metric), *spending(groups, metric), *held]


def environment() -> Environment:
    """The templates of all pages: whatever is put in is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _scope(groups: Sequence[Group]) -> str:
    """How much stands behind the figures, in a line."""
    runs = sum(len(one.records) for one in groups)
    seeds = sorted({seed for one in groups for seed in one.seeds})
    rounds = sorted({record.rounds[-1]["round"] for one in groups for record in one.records})
    span = str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    said = "1 seed, no interval" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    return " · ".join([_counted(len(groups), "group"), _counted(runs, "run"), _counted(span, "round"), said])


def _counted(number: int | str, word: str) -> str:
    return f"{number} {word}" if str(number) == "1" else f"{number} {word}s"


def _spans(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The headings above the headings, and how many columns each spans."""
    names = [column.span for column in columns]
    return [(name, names.count(name)) for name in dict.fromkeys(names)]


def _others(groups: Sequence[Group]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Every plain number of the record at the last round, by group: mean and half width."""
    keys = dict.fromkeys(key for one in groups for record in one.records for key in central(record))
    plain = Column("", "", "", "")
    cells = {key: [curve(one, key).last for one in groups] for key in [*keys, "train_loss"]}
    return [
        (key, [(plain.mean(cell), plain.half(cell)) for cell in row]) for key, row in cells.items() if any(row)
    ]  # fmt: skip
