"""The final table for a terminal."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table as Printed
from rich.text import Text

from atoll.records import read_runs
from atoll.report.final_table import brief_table, final
from atoll.report.metrics import primary
from atoll.report.notes import notes
from atoll.report.privacy import alarms, lines
from atoll.report.render import rich_table
from atoll.report.seed_groups import group


def summary(folders: Sequence[Path], metric: str | None = None) -> Printed:
    """The final table of these runs: print it with a rich console. What holds is not dim, what contradicts it loud."""
    records = read_runs(folders)
    groups = group(records)
    outcome = final(groups, primary(records, metric))
    table = brief_table(outcome)
    printed = rich_table(replace(table, notes=(*table.notes, *notes(records, groups, outcome))))
    for line, style in [(note, "") for note in lines(groups)] + [(note, " bold red") for note in alarms(groups)]:
        printed.caption = Text.assemble(printed.caption or "", Text(f"\n{line}", f"not dim{style}"))
    return printed
