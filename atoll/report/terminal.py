"""The final table for a terminal: the columns that matter, within 80 characters."""

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from atoll.records import read_runs
from atoll.report.final_table import Column, Final, FinalRow, final
from atoll.report.metrics import primary
from atoll.report.notes import notes
from atoll.report.privacy import alarms, lines
from atoll.report.seed_groups import Group, group

HEADINGS = {"last": "test", "worst": "worst 10%", "gain": "gain", "up": "MB up", "seconds": "s/round"}


def summary(folders: Sequence[Path]) -> Table:
    """The final table of these runs: print it with a rich console."""
    records = read_runs(folders)
    groups = group(records)
    found = final(groups, primary(records))
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, title_justify="left", caption_justify="left")
    table.title = Text(_title(found), style="bold")
    table.caption = _caption(found, notes(records, groups, found)).append_text(_privacy(groups))
    table.add_column("run", overflow="fold", min_width=12)
    table.add_column("seeds", justify="right", no_wrap=True)
    columns = [column for column in found.columns if column.key in HEADINGS]
    texts = [_aligned(HEADINGS[column.key], column, found.rows) for column in columns]
    for heading, *_ in texts:
        table.add_column(heading, no_wrap=True)
    for number, row in enumerate(found.rows, start=1):
        first = row.when == "before"
        name, seeds = (row.group.name, str(len(row.group.records))) if first else ("  then tuned", "")
        table.add_row(Text(name), seeds, *(cells[number] for cells in texts))
    return table


def _title(found: Final) -> str:
    unit = " in percent" if found.metric.percent else ""
    return f"{found.metric.title}{unit}, {found.metric.better}"


def _aligned(heading: str, column: Column, rows: Sequence[FinalRow]) -> list[str]:
    """The heading and the cells, padded so that means stand under means and intervals under intervals."""
    cells = [row.cells.get(column.key) for row in rows]
    halves = [column.half(cell, digits=1).removeprefix("± ") for cell in cells]
    width = max(map(len, halves))
    means = [
        column.mean(cell, digits=1) if column.key in row.cells else "" for cell, row in zip(cells, rows, strict=True)
    ]
    tails = [f" ±{half:>{width}}" if half else " " * (width + 2) if width else "" for half in halves]
    texts = [mean + tail for mean, tail in zip(means, tails, strict=True)]
    full = max(map(len, [heading, *texts]))
    return [text.rjust(full) for text in [heading, *texts]]


def _caption(found: Final, remarks: Sequence[str]) -> Text:
    lines = ["test: central test set, last round; ± half a 95 % t interval over seeds."]
    if any(column.key == "worst" for column in found.columns):
        lines.append("worst 10%: mean of the worst-off tenth of the clients.")
    if found.has_gain:
        lines.append("gain: over training alone, mean over clients.")
    if any(row.when == "after" for row in found.rows):
        lines.append("then tuned: the same clients after local training.")
    return Text("\n".join([*lines, *remarks]), style="dim")


def _privacy(groups: Sequence[Group]) -> Text:
    """What holds, not dimmed; what contradicts it, loudly."""
    told = Text("".join(f"\n{line}" for line in lines(groups)), style="not dim")
    return told.append_text(Text("".join(f"\n{line}" for line in alarms(groups)), style="not dim bold red"))
