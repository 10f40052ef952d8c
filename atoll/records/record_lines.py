"""record.jsonl: a line for each round, which only ever grows at its end."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll.errors import RecordError
from atoll.records.atomic import as_json

RecordLine = dict[str, Any]
_TAIL = 1 << 20  # bytes in which the last line is looked for


def line_of(entry: Mapping[str, Any]) -> str:
    try:
        return json.dumps(entry, allow_nan=False) + "\n"
    except (ValueError, TypeError):  # a NaN or a number of numpy's: rare, and slower
        return as_json(entry) + "\n"


def read_lines(path: Path) -> list[RecordLine]:
    """Every round, in order; a torn last line is as if it had not been written, and the later line of a round counts.

    Raises `RecordError` where anything else is not a round.
    """
    try:
        lines = path.read_bytes().decode(errors="replace").split("\n") if path.exists() else []
    except OSError as e:
        raise RecordError(f"{path}: cannot be read ({e.strerror}). Look at its permissions.") from e
    entries = [_parsed(line) for line in lines[:-1]]  # what follows the last line break is torn
    while entries and not entries[-1]:  # so are zeros, where the power failed
        entries.pop()
    rounds: dict[int, RecordLine] = {}
    for number, entry in enumerate(entries, start=1):
        if entry.get("round") not in range(1, len(rounds) + 2):
            raise RecordError(
                f"{path}, line {number}: is not round {len(rounds) + 1}, and only the last line may be torn. "
                "The record was changed by hand: put it back, or run the experiment again in a new folder."
            )
        rounds[entry["round"]] = entry
    return list(rounds.values())


def last_line(path: Path) -> RecordLine:
    """The last whole line of a record that somebody else is writing; {} if there is none to be read."""
    try:
        with path.open("rb") as f:
            f.seek(max(0, f.seek(0, os.SEEK_END) - _TAIL))
            lines = f.read().split(b"\n")
    except OSError:
        return {}
    return _parsed(lines[-2].decode(errors="replace")) if len(lines) > 1 else {}


def _parsed(line: str) -> RecordLine:
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
