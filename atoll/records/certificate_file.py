"""certificate.json: what a run with server.crfl certifies, beside the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll.errors import RecordError
from atoll.records import layout
from atoll.records.atomic import as_json, replace_text
from atoll.records.run_folder import read_table

_AGAIN = "Certify the run again, or remove the file."


def certificate_path(place: Path) -> Path:
    return place / layout.CERTIFICATE


def read_certificate(place: Path) -> dict[str, Any] | None:
    """The certificate in a run's folder; None where there is none."""
    found = read_table(certificate_path(place), _AGAIN)
    if found is not None and not isinstance(found.get("curve"), list):
        raise RecordError(f"{certificate_path(place)}: holds no curve. {_AGAIN}")
    return found


def write_certificate(place: Path, certificate: Mapping[str, Any]) -> None:
    replace_text(certificate_path(place), as_json(certificate, indent=1))
