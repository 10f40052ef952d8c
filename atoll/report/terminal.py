"""The final table for a terminal, and as a file for a paper or another program."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table as Printed
from rich.text import Text

from atoll.errors import ConfigError
from atoll.records import Record, read_runs, replace_text
from atoll.report.attack_table import attack_lines
from atoll.report.final_table import brief_table, final
from atoll.report.metrics import central, primary
from atoll.report.notes import notes
from atoll.report.privacy import alarms, lines
from atoll.report.render import csv, latex, markdown, rich_table
from atoll.report.security import insecure_alarms, security_lines
from atoll.report.seed_groups import Group, group
from atoll.report.text_table import TextTable, row, text_columns

_FORMATS = (".md", ".tex", ".csv")


def summary(folders: Sequence[Path], metric: str | None = None) -> Printed:
    """The final table of these runs: print it with a rich console. What holds is not dim, what contradicts it loud."""
    records = read_runs(folders)
    groups = group(records)
    printed = rich_table(_table(records, groups, metric))
    said = [*lines(groups), *security_lines(groups), *attack_lines(groups)]
    loud = [*alarms(groups), *insecure_alarms(groups)]
    for line, style in [(note, "") for note in said] + [(note, " bold red") for note in loud]:
        printed.caption = Text.assemble(printed.caption or "", Text(f"\n{line}", f"not dim{style}"))
    return printed


def write_table(folders: Sequence[Path], out: Path, metric: str | None = None) -> Path:
    """The same as Markdown or LaTeX (with booktabs), by the name's ending; a CSV has a line for every run."""
    if out.suffix not in _FORMATS:
        raise ConfigError(f"--table: {out.name!r} must end in {', '.join(_FORMATS)}.")
    records = read_runs(folders)
    groups = group(records)
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".csv":
        text = csv(_runs_table(groups))
    else:
        text = (markdown if out.suffix == ".md" else latex)(_table(records, groups, metric))
    replace_text(out, text.rstrip() + "\n")
    return out


def _runs_table(groups: Sequence[Group]) -> TextTable:
    """Numbers of the last round that has them, as they were measured."""
    runs = [(one.name, record) for one in groups for record in one.records]
    keys = [*dict.fromkeys(key for _, record in runs for key in central(record)), "train_loss"]
    heads = text_columns("method", "seed", "rounds", "status", *keys, "folder")
    rows = tuple(
        row(name, r.seed, len(r.rounds), r.run["status"], *(_last(r, key) for key in keys), str(r.folder))
        for name, r in runs
    )
    return TextTable(heads, rows)


def _last(record: Record, key: str) -> object:
    values = record.series(key).values
    return float(values[-1]) if len(values) else ""


def _table(records: Sequence[Record], groups: Sequence[Group], metric: str | None) -> TextTable:
    outcome = final(groups, primary(records, metric))
    table = brief_table(outcome)
    return replace(table, notes=(*table.notes, *notes(records, groups, outcome)))
