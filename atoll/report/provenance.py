"""What was run, with what, and where: settings shared and different, versions, hardware, digests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll.records import Record, find
from atoll.report.final_table import MISSING
from atoll.report.seed_groups import Group, differences
from atoll.report.settings import flatten, show, toml


@dataclass(frozen=True)
class Told:
    """A run in one line."""

    group: str
    seed: int
    rounds: str
    engine: str
    partition: str
    experiment: str
    model: str
    started: str
    folder: str


def shared(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """The settings that are the same in every group."""
    different = set(differences(groups))
    return [(key, show(value)) for key, value in groups[0].settings.items() if key not in different]


def different(groups: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """The settings that are not, with the value of each group."""
    return [(key, [_shown(group.settings, key) for group in groups]) for key in differences(groups)]


def configs(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """The whole configuration of each group, of its first seed, under the digests of all its seeds."""
    return [(group.name, _digests(group) + "\n" + toml(group.records[0].experiment)) for group in groups]


def runs(groups: Sequence[Group]) -> list[Told]:
    """Every run behind the figures."""
    return [_told(group.name, record) for group in groups for record in group.records]


def facts(records: Sequence[Record]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Model, partition, versions and hardware; where runs disagree, every value is listed."""
    parts = ("model", "partition", "engine", "versions", "hardware")
    found = [(part, _facts([find(record.run, part) for record in records])) for part in parts]
    return [(part, rows) for part, rows in found if rows]


def _digests(group: Group) -> str:
    """As comments above the configuration."""
    return "".join(
        f"# seed {told.seed}: experiment {told.experiment}\n#   partition {told.partition}\n#   model {told.model}\n"
        for told in (_told(group.name, record) for record in group.records)
    )


def _facts(tables: Sequence[Any]) -> list[tuple[str, str]]:
    flat = [flatten(table) for table in tables if isinstance(table, Mapping)]
    keys = dict.fromkeys(key for table in flat for key in table if key != "digest")  # digests stand with their runs
    return [(key, " | ".join(dict.fromkeys(_shown(table, key) for table in flat))) for key in keys]


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return show(settings[key]) if key in settings else MISSING


def _told(name: str, record: Record) -> Told:
    last, asked = record.rounds[-1], record.experiment.get("rounds")
    return Told(
        group=name,
        seed=record.seed,
        rounds=f"{last['round']} of {asked}" if asked else str(last["round"]),
        engine=str(find(record.run, "engine", "name") or MISSING),
        partition=record.split or MISSING,
        experiment=str(record.run.get("digest") or MISSING),
        model=str(last.get("model") or MISSING),
        started=str(record.run.get("started") or MISSING),
        folder=str(record.folder),
    )
