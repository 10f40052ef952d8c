"""Runs that differ only in their seed form one group; a group has a name that tells it from the others."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atoll.records import Record
from atoll.report.settings import differing, flatten, is_fingerprint, short, show, telling, unusual

ALONE = "local"  # the algorithm that trains every client alone


@dataclass(frozen=True)
class Group:
    """One method as it was run: one record per seed, in the order of the seeds."""

    name: str
    records: tuple[Record, ...]
    settings: dict[str, Any]

    @property
    def seeds(self) -> list[int]:
        return [record.seed for record in self.records]

    @property
    def alone(self) -> bool:
        """Whether the clients train alone: the yardstick for a gain."""
        return self.records[0].algorithm == ALONE

    @property
    def personal(self) -> bool:
        """Whether clients predict with models of their own, which their federation makes."""
        return bool(self.records[0].run.get("personal")) and not self.alone

    @property
    def without_server(self) -> bool:
        """Whether nodes send to each other, with nobody in the middle."""
        return self.records[0].without_server

    @property
    def said_seeds(self) -> str:
        """The seeds in words; a single seed says that there is no interval."""
        return "1 seed, no interval" if len(self.records) == 1 else f"{len(self.records)} seeds"


def group(records: Sequence[Record]) -> list[Group]:
    """Group by label and experiment without its seed, in the order of first appearance."""
    by_key: dict[str, list[Record]] = {}
    for record in records:
        key = json.dumps([record.label, flatten(record.experiment)], sort_keys=True, default=str)
        by_key.setdefault(key, []).append(record)
    chosen = [_one_per_seed(members) for members in by_key.values()]
    settings = [flatten(members[0].experiment) for members in chosen]
    names = _names([members[0] for members in chosen], [unusual(one) for one in settings])
    return [Group(*parts) for parts in zip(names, chosen, settings, strict=True)]


def differences(groups: Sequence[Group]) -> list[str]:
    """The settings in which the groups differ."""
    return differing([group.settings for group in groups])


def _one_per_seed(records: Sequence[Record]) -> tuple[Record, ...]:
    """A seed run twice is not two seeds: the longer run counts, then the newer."""
    by_seed: dict[int, Record] = {}
    for record in sorted(records, key=lambda r: (len(r.rounds), str(r.run.get("started", "")))):
        by_seed[record.seed] = record
    return tuple(by_seed[seed] for seed in sorted(by_seed))


def _asked(record: Record, word: str) -> str:
    """An epsilon in a name is one that holds, or is said to be asked for only."""
    held = any(claim.holds for claim in record.claims)
    return word if held or word.rpartition(".")[2] != "epsilon" else f"{word} asked"


def _names(firsts: Sequence[Record], settings: Sequence[dict[str, Any]]) -> list[str]:
    """The label, and every setting that differs between groups of one label, where the group has it."""
    labels = [record.label for record in firsts]
    families = [[s for s, other in zip(settings, labels, strict=True) if other == label] for label in set(labels)]
    needed = {key for family in families for key in telling(family) if not is_fingerprint(key)}
    words = short([key for key in dict.fromkeys(key for s in settings for key in s) if key in needed])
    names = [
        " ".join([label, *(f"{_asked(record, word)}={show(own[key])}" for key, word in words.items() if key in own)])
        for label, own, record in zip(labels, settings, firsts, strict=True)
    ]
    return [
        name if names.count(name) == 1 else f"{name} ({record.folder.name})"
        for name, record in zip(names, firsts, strict=True)
    ]
