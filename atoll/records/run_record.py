"""All that a run says of itself, read at once and left as it was: for reports and comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.errors import RecordError
from atoll.records.attack_outcome import AttackOutcome, attack_outcome
from atoll.records.audit_file import attacks_on
from atoll.records.nested import find, has, number_or_nan
from atoll.records.privacy_claims import Claim, claims
from atoll.records.run_folder import RunFolder
from atoll.records.security_level import SecurityLevel, security_level

Floats = NDArray[np.float64]


class Series(NamedTuple):
    """One number over the rounds that recorded it."""

    rounds: NDArray[np.int64]
    values: Floats


@dataclass(frozen=True)
class Clients:
    """The latest evaluation, client by client; a value that is missing or not finite is NaN."""

    round: int
    ids: tuple[int | str, ...]
    on: str
    before: Mapping[str, Floats]
    after: Mapping[str, Floats]
    examples: tuple[int, ...] = ()

    def measured(self, metric: str, when: str) -> dict[int | str, float]:
        """The clients with a finite value: of the model as it stands (`before`) or after local training (`after`)."""
        values = (self.after if when == "after" else self.before).get(metric)
        if values is None:
            return {}
        return {i: float(v) for i, v in zip(self.ids, values, strict=True) if math.isfinite(v)}


@dataclass(frozen=True)
class Record:
    """One run: what was asked (`run`), what happened round by round, the latest look at each client, and attacks."""

    folder: Path
    run: Mapping[str, Any]
    rounds: tuple[Mapping[str, Any], ...]
    clients: Clients | None
    attacks: tuple[Mapping[str, Any], ...] = ()  # membership attacks on its model
    times: tuple[Mapping[str, Any], ...] = ()  # in virtual time: the timestamps of every round, if it had a clock

    @property
    def label(self) -> str:
        """What the user calls it."""
        return str(self.run["label"])

    @property
    def seed(self) -> int:
        return int(self.run["seed"])

    @property
    def status(self) -> str:
        """How it ended (`status.py`)."""
        return str(self.run["status"])

    @property
    def experiment(self) -> Mapping[str, Any]:
        """The complete configuration, nested as in the TOML file."""
        experiment: Mapping[str, Any] = self.run["experiment"]
        return experiment

    @property
    def algorithm(self) -> str:
        """The algorithm's registered name."""
        return str(find(self.experiment, "algorithm", "name") or "")

    @property
    def split(self) -> str:
        """The digest of the partition: equal digests mean the same examples at the same clients."""
        return str(find(self.run, "partition", "digest") or "")

    @property
    def client_names(self) -> dict[int | str, str]:
        """What clients are called, by id; empty where that is not known."""
        return dict(enumerate(map(str, find(self.run, "partition", "names") or ())))

    @property
    def data(self) -> str:
        """The digest of its data; empty where an older version did not write one."""
        return str(find(self.run, "data", "digest") or "")

    @property
    def inputs(self) -> dict[str, str]:
        """Digests of what else it read or drew (`read_inputs`)."""
        return read_inputs(self.run)

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What it says of its privacy, for all rounds that were recorded."""
        return claims(self.run.get("privacy"), self.rounds[-1])

    @property
    def security(self) -> SecurityLevel | None:
        """What was seen of its clients; None where an older version did not say."""
        return security_level(self.run)

    @property
    def attack(self) -> AttackOutcome | None:
        """What attackers made of it; None where there were none."""
        return attack_outcome(self.run, self.rounds)

    @property
    def without_server(self) -> bool:
        """Did nodes send to each other, with nobody in the middle? Then what one sends up, another receives."""
        return self.run.get("topology") is not None

    def bytes_sent(self) -> Floats:
        """Of every round: up and down, or between nodes, each byte once."""
        up = self.series("bytes.up").values
        return up if self.without_server else up + self.series("bytes.down").values

    def series(self, *path: str) -> Series:
        """One number by round, for example `series("clients", "accuracy", "mean")`; rounds without it are left out.

        A path may be written as one word: `series("clients.accuracy.mean")`.
        """
        keys = tuple(".".join(path).split("."))
        points = [(line["round"], number_or_nan(find(line, *keys))) for line in self.rounds if has(line, keys)]
        return Series(np.array([r for r, _ in points], np.int64), np.array([v for _, v in points], np.float64))


def read_runs(folders: Sequence[Path]) -> list[Record]:
    """Read run folders, in the order given; a folder given twice is read once."""
    if not folders:
        raise RecordError("report: no run folder was given. Give at least one, for example runs/fedavg-0.")
    unique = {Path(folder).resolve(): Path(folder) for folder in folders}
    return [_record(RunFolder(folder)) for folder in unique.values()]


def _record(folder: RunFolder) -> Record:
    info, lines = folder.info, folder.record()
    if not lines:
        raise RecordError(
            f"{folder.record_path}: holds no complete round yet. Wait for the first round, or leave it out."
        )
    times = tuple(folder.times()[: len(lines)])
    return Record(folder.path, info, tuple(lines), _clients(folder), attacks_on(folder.path), times)


def _clients(folder: RunFolder) -> Clients | None:
    table = folder.clients()
    if table is None:
        return None
    try:
        clients = Clients(
            round=int(table["round"]),
            ids=tuple(table["ids"]),
            on=str(table["on"]),
            before=_columns(table["before"]),
            after=_columns(table.get("after") or {}),
            examples=tuple(table.get("examples") or ()),
        )
    except (KeyError, TypeError, AttributeError) as e:
        raise RecordError(
            f"{folder.clients_path}: is not a look at the clients ({e!r}). Run the experiment again."
        ) from e
    uneven = [name for part in (clients.before, clients.after) for name in part if len(part[name]) != len(clients.ids)]
    if uneven:
        raise RecordError(
            f"{folder.clients_path}: {uneven[0]} does not hold one value for each of {len(clients.ids)} clients. "
            "Run the experiment again."
        )
    return clients


def _columns(part: Mapping[str, Sequence[Any]]) -> dict[str, Floats]:
    return {name: np.array([number_or_nan(value) for value in values], np.float64) for name, values in part.items()}


def read_inputs(info: Mapping[str, Any]) -> dict[str, str]:
    """Digests of what a run read beside its data: the graph ("round.graph"), and files by the settings that name them.

    >>> read_inputs({"topology": {"nodes": 4, "digest": "ab12"}, "files": {"clock.trace": "cd34"}})
    {'round.graph': 'ab12', 'clock.trace': 'cd34'}
    """
    graph = find(info, "topology", "digest")
    return {**({"round.graph": str(graph)} if graph else {}), **(find(info, "files") or {})}
