"""results.json: read and written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from atoll.errors import RecordError
from atoll.records import layout
from atoll.records.atomic import replace_text
from atoll.records.cells import Cell, Results, Trace, Trial

_SELDOM = ("privacy", "times", "security", "attack")  # left out where a run has none
_DIGITS = 6  # significant, of what was measured: more than any seed's noise leaves


def write_results(results: Results, path: Path) -> Path:
    """Write results.json in one step."""
    content = {"format": layout.RESULTS_FORMAT, **_plain(asdict(results))}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, _text(content))
    except OSError as e:
        raise RecordError(f"{path}: could not be written ({e}). Free some space, or name another place.") from e
    return path


def read_results(path: Path) -> Results:
    """Read results.json, or the one in a suite's folder."""
    path = path / layout.RESULTS if path.is_dir() else path
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise RecordError(
            f"{path}: is not there. Name a folder that `atoll bench` wrote, or its {layout.RESULTS}."
        ) from None
    except (OSError, ValueError) as e:
        raise RecordError(f"{path}: cannot be read ({e}). Write it again with atoll bench --resume.") from e
    if not isinstance(content, dict) or content.get("format") != layout.RESULTS_FORMAT:
        raise RecordError(f"{path}: holds no results of a suite, or was written in another format.")
    try:
        return _results(content)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise RecordError(f"{path}: is not what `atoll bench` writes ({e!r}). Write it again.") from e


def _results(content: Mapping[str, Any]) -> Results:
    cells = tuple(_cell(cell) for cell in content["cells"])
    return Results(**{**_known(Results, content), "axes": tuple(content["axes"]), "cells": cells})


def _cell(table: Mapping[str, Any]) -> Cell:
    runs = tuple(map(_trace, table["runs"]))
    trials = tuple(
        Trial(t["settings"], tuple(map(_trace, t["runs"])), _number(t["score"])) for t in table.get("trials", ())
    )
    return Cell(**{**_known(Cell, table), "runs": runs, "trials": trials})


def _trace(table: Mapping[str, Any]) -> Trace:
    costs = {"up": table.get("up", ())}
    costs |= {name: table[name] for name in ("values", "bytes", "seconds")}
    series = {name: tuple(map(_number, numbers)) for name, numbers in costs.items()}
    return Trace(**{**_known(Trace, table), **series, "rounds": tuple(map(int, table["rounds"]))})


def _known(kind: type, table: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that this version knows of; a later one may write more."""
    names = {f.name for f in fields(kind)}
    return {key: value for key, value in table.items() if key in names}


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _plain(value: Any) -> Any:
    """Only what JSON has: NaN becomes null, floats lose the digits that say nothing."""
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items() if v != {} or k not in _SELDOM}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    return value


def _text(content: Mapping[str, Any]) -> str:
    """One line per cell: small, and a diff shows which cells changed."""
    head = {k: v for k, v in content.items() if k != "cells"}
    lines = ",\n  ".join(json.dumps(cell, separators=(",", ":"), allow_nan=False) for cell in content["cells"])
    rest = json.dumps(head, indent=1, allow_nan=False)
    return f'{rest[:-2]},\n "cells": [\n  {lines}\n ]\n}}\n'
