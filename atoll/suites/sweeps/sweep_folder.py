"""A sweep is a folder: sweep.json, report.html, and cells/, where every cell is an ordinary run folder.

Whether a cell is done is said by its own run.json alone: sweep.json is a table to look at, written after it.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atoll.errors import RecordError
from atoll.runs import Folder
from atoll.runs.folder import clean
from atoll.runs.lifecycle import ended
from atoll.suites.sweeps.axes import Cell

FORMAT = 1
WAITING = "waiting"
_OURS = {"sweep.json", "sweep.lock", "cells", "errors", "report.html"}


class SweepFolder:
    """Reads and writes one sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, Path] | None = None  # digest -> folder, as found when first asked
        self._others: list[Any] | None = None

    def claim(self, resume: bool) -> None:
        """Refuse a place that is taken, as far as that is known before anything is written."""
        if (self.path / "sweep.json").exists():
            if not resume:
                raise RecordError(
                    f"{self.path}: holds a sweep already. Go on with it (--resume), or name another folder."
                )
            self.info()
        elif (self.path / "run.json").exists():
            raise RecordError(f"{self.path}: holds a run, not a sweep. Name another folder with --out.")
        elif self.path.is_dir():
            strangers = sorted({p.name for p in self.path.iterdir() if not p.name.startswith(".")} - _OURS)
            if strangers and not (resume and self._cells().is_dir()):
                what = f"holds {strangers[0]!r}, which is not part of a sweep"
                raise RecordError(f"{self.path}: {what}. Name an empty or a new folder.")
            if not resume and any(self._cells().iterdir() if self._cells().is_dir() else ()):
                raise RecordError(f"{self.path}: holds cells already. Go on (--resume), or name another folder.")
        elif self.path.exists():
            raise RecordError(f"{self.path}: is a file. Name a folder with --out.")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other sweeps out. If we die, the system lets go of the lock: what a dead sweep left is no obstacle."""
        try:
            self._cells().mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / "sweep.lock", os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as e:
            raise RecordError(f"{self.path}: cannot be written ({e.strerror}). Name another folder with --out.") from e
        try:
            _lock(handle, self.path)
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(_myself()).encode(), 0)
            yield
            os.ftruncate(handle, 0)
        finally:
            os.close(handle)

    def info(self) -> dict[str, Any]:
        """What sweep.json says."""
        path = self.path / "sweep.json"
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError) as e:
            raise RecordError(
                f"{path}: cannot be read ({e}). Remove that file: the cells are still there, and --resume finds them."
            ) from e
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise RecordError(f"{path}: was written in another format. Go on with the version that wrote it.")
        return {**found, **{part: [self._listed(c) for c in found.get(part, [])] for part in ("cells", "others")}}

    def _listed(self, cell: dict[str, Any]) -> dict[str, Any]:
        """A cell of sweep.json, with the digest that its folder has today: the first version had other names."""
        with suppress(RecordError):
            return {**cell, "digest": Folder(self.path / cell["folder"]).info["digest"]}
        return cell

    def write(self, axes: Mapping[str, Any], cells: Sequence[Cell], states: Mapping[str, str]) -> None:
        """Replace sweep.json, in one step. Cells of an earlier file are remembered under "others"."""
        if self._others is None:
            self._others = self._earlier({cell.digest for cell in cells})
        listed = [
            {
                "name": cell.name,
                "coordinates": cell.coordinates,
                "digest": cell.digest,
                "folder": str(self.place(cell).relative_to(self.path)),
                "state": states.get(cell.name, WAITING),
            }
            for cell in cells
        ]
        content = {"format": FORMAT, "axes": axes, "cells": listed, "others": self._others}
        draft = self.path / f".sweep.json.{os.getpid()}.draft"
        try:
            draft.write_text(json.dumps(clean(content), indent=1))
            draft.replace(self.path / "sweep.json")
        except OSError as e:
            draft.unlink(missing_ok=True)
            raise RecordError(f"{self.path}: could not be written ({e}). Free some space, then --resume.") from e

    def place(self, cell: Cell) -> Path:
        """The cell's folder: where it is already, whatever it was called then; or a new one named after it."""
        if self._known is None:
            self._known = dict(self._runs())
        return self._known.get(cell.digest, self._cells() / f"{cell.name}-{cell.digest[:8]}")

    def _runs(self) -> Iterator[tuple[str, Path]]:
        for path in sorted(self._cells().iterdir()) if self._cells().is_dir() else ():
            with suppress(RecordError):
                yield Folder(path).info["digest"], path

    def _earlier(self, now: set[str]) -> list[Any]:
        """Cells that an earlier file had and this one has not."""
        before: dict[str, Any] = {}
        with suppress(RecordError):
            before = self.info()
        return [c for c in (*before.get("cells", []), *before.get("others", [])) if c["digest"] not in now]

    def done(self, cell: Cell) -> str | None:
        """How the cell ended, if there is nothing left to do for it."""
        with suppress(RecordError):
            info = Folder(self.place(cell)).info
            return str(info["status"]) if ended(info) and info["digest"] == cell.digest else None
        return None

    def _cells(self) -> Path:
        return self.path / "cells"


def _myself() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat(timespec="seconds")}


def _lock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _busy(path, _note(handle)) from None
    except OSError:  # a file system without locks: what the file says must do
        if _alive(_note(handle)):
            raise _busy(path, _note(handle)) from None


def _busy(path: Path, note: Mapping[str, Any]) -> RecordError:
    who = f"process {note['pid']} on {note['host']}, since {note['since']}" if note else "another process"
    return RecordError(
        f"{path}: another sweep is at work here ({who}). Wait for it or stop it first, or name another folder."
    )


def _note(handle: int) -> dict[str, Any]:
    try:
        found = json.loads(os.pread(handle, 1000, 0))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and {"pid", "host", "since"} <= found.keys() else {}


def _alive(note: Mapping[str, Any]) -> bool:
    """Does the process that wrote this note still run? On another machine we cannot know, and say yes."""
    if not note or note["host"] != socket.gethostname():
        return bool(note)
    try:
        os.kill(int(note["pid"]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError, TypeError):
        return True
    return int(note["pid"]) != os.getpid()
