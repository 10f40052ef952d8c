"""A sweep is a folder: sweep.json, report.html, and cells/, where every cell is an ordinary run folder.

Whether a cell is done is said by its own run.json alone: sweep.json is a table to look at, written after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from atoll.errors import RecordError
from atoll.records import layout
from atoll.records.atomic import as_json, replace_text
from atoll.records.lock import locked_file
from atoll.records.run_folder import RunFolder
from atoll.records.status import WAITING, ended

_OURS = {layout.SWEEP, layout.SWEEP_LOCK, layout.CELLS, layout.ERRORS, layout.REPORT}


class CellKey(Protocol):
    """What a folder must know of a cell to find it again."""

    @property
    def name(self) -> str:
        """Unique in its sweep, and fit to name a folder."""
        ...

    @property
    def coordinates(self) -> Mapping[str, Any]:
        """Its value on each axis."""
        ...

    @property
    def digest(self) -> str:
        """Of its experiment."""
        ...


class SweepFolder:
    """Reads and writes one sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cells = path / layout.CELLS
        self._folders: dict[str, Path] | None = None  # digest -> folder, as found when first asked
        self._others: list[Any] | None = None

    def exists(self) -> bool:
        """Is there a sweep here already?"""
        return (self.path / layout.SWEEP).exists()

    def claim(self, resume: bool) -> None:
        """Refuse a place that is taken, as far as that is known before anything is written."""
        if self.exists():
            if not resume:
                raise RecordError(
                    f"{self.path}: holds a sweep already. Go on with it (--resume), or name another folder."
                )
            self.info()
        elif RunFolder(self.path).exists():
            raise RecordError(f"{self.path}: holds a run, not a sweep. Name another folder with --out.")
        elif self.path.is_dir():
            self._refuse_strangers(resume)
        elif self.path.exists():
            raise RecordError(f"{self.path}: is a file. Name a folder with --out.")

    def _refuse_strangers(self, resume: bool) -> None:
        strangers = sorted({p.name for p in self.path.iterdir() if not p.name.startswith(".")} - _OURS)
        if strangers and not (resume and self.cells.is_dir()):
            what = f"holds {strangers[0]!r}, which is not part of a sweep"
            raise RecordError(f"{self.path}: {what}. Name an empty or a new folder.")
        if not resume and any(self.cells.iterdir() if self.cells.is_dir() else ()):
            raise RecordError(f"{self.path}: holds cells already. Go on (--resume), or name another folder.")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other sweeps out. What a dead one left is no obstacle."""
        with locked_file(self.path / layout.SWEEP_LOCK):
            self.cells.mkdir(exist_ok=True)
            yield

    def info(self) -> dict[str, Any]:
        """What sweep.json says."""
        path = self.path / layout.SWEEP
        try:
            info = json.loads(path.read_text())
        except (OSError, ValueError) as e:
            raise RecordError(
                f"{path}: cannot be read ({e}). Remove that file: the cells are still there, and --resume finds them."
            ) from e
        if not isinstance(info, dict) or info.get("format") != layout.SWEEP_FORMAT:
            raise RecordError(f"{path}: was written in another format. Go on with the version that wrote it.")
        return {**info, **{part: [self._upgraded(c) for c in info.get(part, [])] for part in ("cells", "others")}}

    def _upgraded(self, cell: dict[str, Any]) -> dict[str, Any]:
        """A cell of sweep.json, with the digest that its folder has today: the first version had other names."""
        with suppress(RecordError):
            return {**cell, "digest": RunFolder(self.path / cell["folder"]).info["digest"]}
        return cell

    def write(self, axes: Mapping[str, Any], cells: Sequence[CellKey], states: Mapping[str, str]) -> None:
        """Replace sweep.json, in one step. Cells of an earlier file are remembered under "others"."""
        if self._others is None:
            self._others = self._earlier({cell.digest for cell in cells})
        listed = [self._entry(cell, states.get(cell.name, WAITING)) for cell in cells]
        content = {"format": layout.SWEEP_FORMAT, "axes": axes, "cells": listed, "others": self._others}
        try:
            replace_text(self.path / layout.SWEEP, as_json(content, indent=1))
        except OSError as e:
            raise RecordError(f"{self.path}: could not be written ({e}). Free some space, then --resume.") from e

    def _entry(self, cell: CellKey, state: str) -> dict[str, Any]:
        return {
            "name": cell.name,
            "coordinates": cell.coordinates,
            "digest": cell.digest,
            "folder": str(self.place(cell).relative_to(self.path)),
            "state": state,
        }

    def place(self, cell: CellKey) -> Path:
        """The cell's folder: where it is already, whatever it was called then; or a new one named after it."""
        if self._folders is None:
            self._folders = dict(self._runs())
        return self._folders.get(cell.digest, self.cells / f"{cell.name}-{cell.digest[:8]}")

    def _runs(self) -> Iterator[tuple[str, Path]]:
        for path in sorted(self.cells.iterdir()) if self.cells.is_dir() else ():
            with suppress(RecordError):
                yield RunFolder(path).info["digest"], path

    def listed(self) -> list[dict[str, Any]]:
        """The entries of sweep.json, those of earlier files first; none where it cannot be read."""
        info: dict[str, Any] = {}
        with suppress(RecordError):
            info = self.info()
        return [*info.get("others", []), *info.get("cells", [])]

    def _earlier(self, now: set[str]) -> list[Any]:
        """Cells that an earlier file had and this one has not."""
        return [entry for entry in self.listed() if entry["digest"] not in now]

    def done(self, cell: CellKey) -> str | None:
        """How the cell ended, if there is nothing left to do for it."""
        with suppress(RecordError):
            info = RunFolder(self.place(cell)).info
            return str(info["status"]) if ended(info) and info["digest"] == cell.digest else None
        return None


def keep_traceback(cell_folder: Path, text: str) -> Path:
    """Write what went wrong beside the cells: a folder that holds something else is no place for a run."""
    path = cell_folder.parent.parent / layout.ERRORS / f"{cell_folder.name}.txt"
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return path
