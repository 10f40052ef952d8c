"""What was run, with what, and where: settings shared and different, versions, hardware, digests."""

from collections.abc import Mapping, Sequence
from typing import Any

from atoll.records import Record, find
from atoll.report.prose import MISSING
from atoll.report.seed_groups import Group, differences
from atoll.report.settings import flatten, show, toml
from atoll.report.text_table import TextCell, TextRow, TextTable, number_columns, row, text_columns

RUN = (
    *text_columns("run"), *number_columns("seed", "rounds"), *text_columns("engine"),
    *text_columns("partition", "experiment", "model", kind="code"), *text_columns("started"),
    *text_columns("folder", kind="code"),
)  # fmt: skip


def shared(groups: Sequence[Group]) -> TextTable | None:
    """The settings that are the same in every group."""
    different = set(differences(groups))
    rows = tuple(row(key, show(value)) for key, value in groups[0].settings.items() if key not in different)
    return TextTable((*text_columns("setting", kind="code"), *text_columns("value")), rows) if rows else None


def different(groups: Sequence[Group]) -> TextTable | None:
    """The settings that are not, with the value of each group."""
    rows = tuple(row(key, *(_shown(group.settings, key) for group in groups)) for key in differences(groups))
    note = f"Settings that differ between the runs, seeds aside. {MISSING} means that the setting does not exist there."
    heads = (*text_columns("setting", kind="code"), *text_columns(*(group.name for group in groups)))
    return TextTable(heads, rows, notes=(note,), style="wide") if rows else None


def configs(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """The whole configuration of each group, of its first seed, under the digests of all its seeds."""
    return [(group.name, _digests(group) + "\n" + toml(group.records[0].experiment)) for group in groups]


def runs(groups: Sequence[Group]) -> TextTable:
    """Every run behind the figures."""
    note = (
        "Equal partition digests mean the same examples at the same clients; the model digest is that of the last "
        "recorded round. Whole digests stand with the configurations above."
    )
    rows = tuple(_run(group.name, record) for group in groups for record in group.records)
    return TextTable(RUN, rows, notes=(note,), style="wide told")


def facts(records: Sequence[Record]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Model, partition, versions and hardware; where runs disagree, every value is listed."""
    parts = ("model", "partition", "engine", "versions", "hardware")
    tables = [(part, _facts([find(record.run, part) for record in records])) for part in parts]
    return [(part, rows) for part, rows in tables if rows]


def _digests(group: Group) -> str:
    """As comments above the configuration."""
    lines = []
    for record in group.records:
        partition, experiment, model = digests(record)
        lines.append(f"# seed {record.seed}: experiment {experiment}\n#   partition {partition}\n#   model {model}\n")
    return "".join(lines)


def digests(record: Record) -> tuple[str, str, str]:
    """Of the partition, the experiment and the last model."""
    recorded = record.split, record.run.get("digest"), record.rounds[-1].get("model")
    partition, experiment, model = (str(digest or MISSING) for digest in recorded)
    return partition, experiment, model


def _facts(tables: Sequence[Any]) -> list[tuple[str, str]]:
    flat = [flatten(table) for table in tables if isinstance(table, Mapping)]
    keys = dict.fromkeys(key for table in flat for key in table if key != "digest")  # digests stand with their runs
    return [(key, " | ".join(dict.fromkeys(_shown(table, key) for table in flat))) for key in keys]


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return show(settings[key]) if key in settings else MISSING


def _run(name: str, record: Record) -> TextRow:
    done, asked = record.rounds[-1]["round"], record.experiment.get("rounds")
    rounds, engine = f"{done} of {asked}" if asked else done, find(record.run, "engine", "name") or MISSING
    cut = (TextCell(digest[:10], hint=digest) for digest in digests(record))
    return row(name, record.seed, rounds, engine, *cut, record.run.get("started") or MISSING, record.folder)
