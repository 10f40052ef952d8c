"""Trace files: what was measured of each client, and when it could be reached. CSV or Parquet."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from atoll.clock.device_classes import COLUMNS
from atoll.clock.quantities import Floats, Ints
from atoll.errors import ConfigError


def read_device_trace(path: str, population: int, names: Sequence[str]) -> dict[str, Floats]:
    """The columns of every client, (N,) each."""
    where = "clock.trace"
    table = _read(path, where)
    columns = [name for name in COLUMNS if name in table]
    if not columns or set(table) - {"client", *COLUMNS}:
        raise ConfigError(f"{where}: {path} has columns {', '.join(table)}. Use client and {', '.join(COLUMNS)}.")
    ids = _ids(table, path, where, population, names)
    if len(np.unique(ids)) < len(ids) or len(ids) < population:
        missing = sorted(set(range(population)) - set(ids.tolist()))[:3]
        what = f"has no client {missing[0]}" if missing else "has a client twice"
        raise ConfigError(f"{where}: {path} {what}, and needs one row for each of the {population} clients.")
    order = np.argsort(ids)
    traced = {name: _numbers(table[name], f"{where}, {name}", path)[order] for name in columns}
    for name, values in traced.items():
        _check_range(name, values, path)
    return traced


def _check_range(name: str, values: Floats, path: str) -> None:
    positive = name in ("slowness", "up_mbps", "down_mbps")
    wrong = (values <= 0) if positive else (values < 0) | ((name == "loss") & (values >= 1))
    if wrong.any():
        client = int(np.flatnonzero(wrong)[0])
        bound = "above 0" if positive else "at least 0 and below 1" if name == "loss" else "at least 0"
        raise ConfigError(
            f"clock.trace: {path}: {name} of client {client} must be {bound} (got {values[client]:g}). "
            "A client that cannot be reached belongs in clock.availability."
        )


@dataclass(frozen=True, eq=False)
class Intervals:
    """When each client can be reached, in virtual seconds; the trace ends at `length`, and perhaps begins again."""

    client: Ints  # sorted by client, then by start
    start: Floats
    end: Floats
    length: float
    repeats: bool

    def until(self, ids: Ints, now: float) -> Floats:
        """Until when each of these clients can be reached from now on; `now` or less where it cannot."""
        lap = now // self.length if self.repeats else 0.0
        at = now - lap * self.length
        if at >= self.length:
            raise ConfigError(
                f"clock.availability: the trace ends after {self.length:g} s, and a round begins at {now:.6g} s. "
                "Use a longer trace, or repeat it: clock.repeat = true."
            )
        here = (self.start <= at) & (at < self.end)
        ends = dict(zip(self.client[here].tolist(), self.end[here].tolist(), strict=True))
        reached = np.array([self._onwards(c, ends.get(c, -np.inf)) for c in ids.tolist()], np.float64)
        return reached + lap * self.length

    def next_start(self, ids: Ints, now: float) -> float:
        """When the next interval of any of these clients begins, after now; inf: none does."""
        starts = self.start[np.isin(self.client, ids)]
        if not len(starts):
            return np.inf
        lap = now // self.length if self.repeats else 0.0
        later = starts[starts > now - lap * self.length]
        if len(later):
            return float(later.min() + lap * self.length)
        return float(starts.min() + (lap + 1) * self.length) if self.repeats else np.inf

    def _onwards(self, client: int, end: float) -> float:
        """An interval at the end of a trace that repeats goes on with the one at its beginning."""
        if not self.repeats or end < self.length:
            return end
        first = int(np.searchsorted(self.client, client))
        if self.start[first] > 0:
            return end
        return end + float(self.end[first]) if self.end[first] < self.length else np.inf


def read_availability(path: str, population: int, names: Sequence[str], repeats: bool) -> Intervals:
    """Rows of client, start, end: in seconds since the run began."""
    where = "clock.availability"
    table = _read(path, where)
    if set(table) != {"client", "start", "end"}:
        raise ConfigError(f"{where}: {path} has columns {', '.join(table)}. Use client, start and end (seconds).")
    ids = _ids(table, path, where, population, names)
    start, end = (_numbers(table[name], f"{where}, {name}", path) for name in ("start", "end"))
    if not len(ids) or (start < 0).any() or (end <= start).any():
        raise ConfigError(f"{where}: {path} needs rows whose start is at least 0 and below their end.")
    absent = sorted(set(range(population)) - set(ids.tolist()))
    if absent:
        who = names[absent[0]] if len(names) else absent[0]
        raise ConfigError(
            f"{where}: {path} has no rows for {len(absent)} of the {population} clients (client {who} among them), who "
            "would never be reached. Give every client a row."
        )
    order = np.lexsort((start, ids))
    ids, start, end = ids[order], start[order], end[order]
    if ((ids[1:] == ids[:-1]) & (start[1:] < end[:-1])).any():
        raise ConfigError(f"{where}: {path} has intervals of one client that overlap. Join them.")
    return Intervals(ids, start, end, float(end.max()), repeats)


def _ids(table: Mapping[str, Sequence[Any]], path: str, where: str, population: int, names: Sequence[str]) -> Ints:
    by_name = {str(name): i for i, name in enumerate(names)} or {str(i): i for i in range(population)}
    unknown = [c for c in map(str, table.get("client", ())) if c not in by_name]
    if "client" not in table or unknown:
        what = f"names client {unknown[0]!r}, whom nobody knows" if unknown else "has no column client"
        known = f"{next(iter(by_name))} to {list(by_name)[-1]}"
        raise ConfigError(f"{where}: {path} {what}. The {population} clients are {known}.")
    return np.array([by_name[str(c)] for c in table["client"]], np.int64)


def _numbers(values: Sequence[Any], where: str, path: str) -> Floats:
    try:
        numbers = np.array([float(v) for v in values], np.float64)
    except (TypeError, ValueError):
        numbers = np.array([np.nan])
    if not np.isfinite(numbers).all():
        raise ConfigError(f"{where}: {path} holds something other than finite numbers. Fill the gaps.")
    return numbers


def _read(path: str, where: str) -> dict[str, list[Any]]:
    """The columns of a file."""
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"{where}: there is no file {path}. Give the path of a .csv or .parquet file.")
    if file.suffix == ".csv":
        return _read_csv(file, f"{where}: {path}")
    if file.suffix == ".parquet":
        return _read_parquet(file, f"{where}: {path}")
    raise ConfigError(f"{where}: {path} is neither .csv nor .parquet. Save the table as one of these.")


def _read_csv(file: Path, where: str) -> dict[str, list[Any]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:  # a spreadsheet may have put a mark before it
            reader = csv.reader(stream)
            names = next(reader, [])
            rows = [(reader.line_num, row) for row in reader if row]
    except UnicodeDecodeError as e:
        raise ConfigError(f"{where} is not UTF-8. Save it as UTF-8, or as .parquet.") from e
    except csv.Error as e:
        raise ConfigError(f"{where} is no CSV that can be read ({e}). Save the table again, or as .parquet.") from e
    if not names:
        raise ConfigError(f"{where} is empty. Write a line of names first, then a line for each client.")
    for line, row in rows:
        if len(row) != len(names):
            fields = f"{len(row)} field{'' if len(row) == 1 else 's'}"
            raise ConfigError(
                f"{where}: line {line} has {fields}, and the first line has {len(names)} names. Give each line as many."
            )
    return {name: [row[i] for _, row in rows] for i, name in enumerate(names)}


def _read_parquet(file: Path, where: str) -> dict[str, list[Any]]:
    import duckdb

    try:
        relation = duckdb.read_parquet(str(file))
        rows = relation.fetchall()
    except duckdb.Error as e:
        raise ConfigError(
            f"{where} is no Parquet file, or not all of one ({str(e).splitlines()[0]}). Write it again, or as .csv."
        ) from e
    return {name: [row[i] for row in rows] for i, name in enumerate(relation.columns)}
