"""audit.json: the attacks that were made on a run's model, beside the run or in a place of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll.errors import RecordError
from atoll.records import layout
from atoll.records.atomic import as_json, replace_text
from atoll.records.run_folder import read_table

_AGAIN = "Audit the run again, or remove the file."


def audit_path(place: Path) -> Path:
    """Where an audit is written."""
    return place / layout.AUDIT


def read_audit(place: Path) -> dict[str, Any]:
    """The audit in a folder; {} where there is none."""
    return read_table(audit_path(place), _AGAIN) or {}


def attacks_on(place: Path) -> tuple[Mapping[str, Any], ...]:
    """The attacks of the audit in a folder."""
    audit = read_audit(place)
    attacks = audit.get("attacks") if audit or audit_path(place).is_file() else []
    if not isinstance(attacks, list) or not all(isinstance(one, dict) for one in attacks):
        raise RecordError(f"{audit_path(place)}: holds no list of attacks. {_AGAIN}")
    return tuple(attacks)


def write_audit(place: Path, audit: Mapping[str, Any]) -> None:
    """Replace the audit in a folder."""
    place.mkdir(parents=True, exist_ok=True)
    replace_text(audit_path(place), as_json(audit, indent=1))
