"""A run folder, read: `run.json`, the lines of `record.jsonl`, `clients.json` and `audit.json`."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.errors import RecordError
from atoll.records.privacy_claims import Claim, claims
from atoll.records.upgrade import upgraded_info

FORMAT = 1

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

    @property
    def label(self) -> str:
        """What the user calls it."""
        return str(self.run["label"])

    @property
    def seed(self) -> int:
        """The seed of this run."""
        return int(self.run["seed"])

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
    def claims(self) -> tuple[Claim, ...]:
        """What it says of its privacy, for all rounds that were recorded."""
        return claims(self.run.get("privacy"), self.rounds[-1])

    def series(self, *path: str) -> Series:
        """One number by round, for example `series("clients", "accuracy", "mean")`; rounds without it are left out."""
        found = [(line["round"], _number(find(line, *path))) for line in self.rounds if _has(line, path)]
        return Series(np.array([r for r, _ in found], np.int64), np.array([v for _, v in found], np.float64))


def read(folders: Sequence[Path]) -> list[Record]:
    """Read run folders, in the order given; a folder given twice is read once."""
    if not folders:
        raise RecordError("report: no run folder was given. Give at least one, for example runs/fedavg-0.")
    unique = {Path(folder).resolve(): Path(folder) for folder in folders}
    return [_record(folder) for folder in unique.values()]


def find(tree: Any, *path: str) -> Any:
    """What stands at a path of keys in nested tables, or None."""
    for key in path:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


def _has(tree: Any, path: Sequence[str]) -> bool:
    parent = find(tree, *path[:-1])
    return isinstance(parent, Mapping) and path[-1] in parent


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _record(folder: Path) -> Record:
    if not (folder / "run.json").is_file():
        raise RecordError(f"{folder}: is not a run (it holds no run.json). {_instead(folder)}")
    return Record(
        folder,
        _run(folder / "run.json"),
        _lines(folder / "record.jsonl"),
        _clients(folder / "clients.json"),
        _attacks(folder / "audit.json"),
    )


def _instead(folder: Path) -> str:
    runs = sorted(path.parent.name for path in folder.glob("*/run.json"))
    if runs:
        return f"It holds {len(runs)} runs below it: give those, for example {folder / '*'}."
    return "Give the folder that `atoll run` wrote."


def _run(path: Path) -> Mapping[str, Any]:
    run = _json(path)
    if run.get("format") != FORMAT:
        raise RecordError(
            f"{path}: has format {run.get('format')!r}; this version of atoll reads format {FORMAT}. "
            f"Report it with the version that wrote it (atoll {run.get('atoll', 'unknown')})."
        )
    wanted = {"label": str, "seed": int, "experiment": dict}
    wrong = [key for key, kind in wanted.items() if not isinstance(run.get(key), kind)]
    if wrong:
        raise RecordError(f"{path}: lacks {', '.join(wrong)}, or holds something else there. Run the experiment again.")
    return upgraded_info(run)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: cannot be read ({error}). Run the experiment again, or leave it out.") from error
    if not isinstance(value, dict):
        raise RecordError(f"{path}: holds no table. Run the experiment again, or leave it out.")
    return value


def _lines(path: Path) -> tuple[Mapping[str, Any], ...]:
    """The complete lines, one per round; after a resume the later line of a round counts."""
    try:
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error}). Run the experiment again, or leave it out.") from error
    written = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip("\0 \r\t")]
    rounds: dict[int, Mapping[str, Any]] = {}
    for number, line in written:
        parsed = _line(line)
        if parsed is not None:
            rounds[parsed["round"]] = parsed
        elif number != written[-1][0]:  # the last line may be torn: the run was killed while it wrote
            raise RecordError(f"{path}, line {number}: is not a round. Only the last line may be torn; run it again.")
    if not rounds:
        raise RecordError(f"{path}: holds no complete round yet. Wait for the first round, or leave it out.")
    return tuple(rounds[key] for key in sorted(rounds))


def _line(text: str) -> Mapping[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("round"), int) else None


def _clients(path: Path) -> Clients | None:
    if not path.is_file():
        return None
    found = _json(path)
    try:
        clients = Clients(
            round=int(found["round"]),
            ids=tuple(found["ids"]),
            on=str(found["on"]),
            before=_columns(found["before"]),
            after=_columns(found.get("after") or {}),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path}: is not a look at the clients ({error!r}). Run the experiment again.") from error
    uneven = [name for part in (clients.before, clients.after) for name in part if len(part[name]) != len(clients.ids)]
    if uneven:
        raise RecordError(
            f"{path}: {uneven[0]} does not hold one value for each of {len(clients.ids)} clients. "
            "Run the experiment again."
        )
    return clients


def _attacks(path: Path) -> tuple[Mapping[str, Any], ...]:
    if not path.is_file():
        return ()
    found = _json(path).get("attacks")
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise RecordError(f"{path}: holds no list of attacks. Audit the run again, or remove the file.")
    return tuple(found)


def _columns(part: Mapping[str, Sequence[Any]]) -> dict[str, Floats]:
    return {name: np.array([_number(value) for value in values], np.float64) for name, values in part.items()}
