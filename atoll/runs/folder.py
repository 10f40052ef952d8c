"""A run is a folder: run.json, record.jsonl, clients.json, checkpoint.pt (and memory-*.rows), at the end model.pt.

Nothing is ever half-written: whole files are replaced in one step, and the record only grows at its end.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from atoll.errors import RecordError
from atoll.records.upgrade import upgraded_info
from atoll.tree import Tree

FORMAT = 1
_INFO = {"label": str, "digest": str, "status": str, "engine": dict, "experiment": dict, "hardware": dict}


class Folder:
    """Reads and writes one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def info(self) -> dict[str, Any]:
        """What run.json says."""
        try:
            found = json.loads((self.path / "run.json").read_text())
        except FileNotFoundError:
            raise RecordError(f"{self.path}: is not a run (it has no run.json). Name the folder of a run.") from None
        except (OSError, ValueError) as e:
            raise RecordError(f"{self.path / 'run.json'}: cannot be read ({e}). Start again in a new folder.") from e
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise RecordError(f"{self.path}: was written in another format. Read it with the version that wrote it.")
        wrong = [key for key, kind in _INFO.items() if not isinstance(found.get(key), kind)]
        if wrong:
            raise RecordError(f"{self.path / 'run.json'}: lacks {wrong[0]!r}. Start again in a new folder.")
        return upgraded_info(found)

    def exists(self) -> bool:
        """Is there a run here already?"""
        return (self.path / "run.json").exists()

    def vacant(self) -> None:
        """Refuse a place where no run can begin, as far as that is known before anything is written."""
        there = next(p for p in (self.path, *self.path.absolute().parents) if p.exists())
        if not there.is_dir():
            raise RecordError(f"{there}: is a file. Name a folder with --out.")
        if not os.access(there, os.W_OK | os.X_OK):
            raise RecordError(f"{there}: cannot be written. Name another folder with --out.")
        strangers = sorted(p.name for p in self.path.iterdir() if not _is_draft(p)) if self.path.exists() else []
        if strangers:
            raise RecordError(
                f"{self.path}: holds {strangers[0]!r}, which is not part of a run. Name an empty or a new folder."
            )

    def create(self, needed_bytes: int) -> None:
        """Make the folder, or refuse and leave nothing behind: it cannot be written, or the disk is too full."""
        new = [p for p in (self.path, *self.path.absolute().parents) if not p.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass
            self._check_space(needed_bytes)
        except (OSError, RecordError) as e:
            for made in new:
                with suppress(OSError):
                    made.rmdir()
            if isinstance(e, RecordError):
                raise
            raise RecordError(f"{self.path}: cannot be written ({e.strerror}). Name another folder with --out.") from e

    def _check_space(self, needed_bytes: int) -> None:
        free = shutil.disk_usage(self.path).free
        if free < needed_bytes:
            raise RecordError(
                f"{self.path}: the disk has {free / 1e6:,.0f} MB left, the run needs about "
                f"{needed_bytes / 1e6:,.0f} MB. Free some space, or name a folder on another disk with --out."
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes out: two that write one record would spoil it. If we die, the system lets go of it."""
        where = os.open(self.path, os.O_RDONLY)
        try:
            with suppress(OSError):  # a file system without locks
                _lock(where, self.path)
            for draft in filter(_is_draft, self.path.iterdir()):
                draft.unlink(missing_ok=True)
            yield
        finally:
            os.close(where)

    def write_info(self, info: Mapping[str, Any]) -> None:
        """Replace run.json."""
        self._replace("run.json", json.dumps(clean(info), indent=1).encode())

    def write_clients(self, clients: Mapping[str, Any]) -> None:
        """Replace clients.json."""
        self._replace("clients.json", json.dumps(clean(clients)).encode(), settle=False)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Add a line to the record."""
        try:
            with (self.path / "record.jsonl").open("a") as f:
                f.write(_line(entry) + "\n")
        except OSError as e:
            raise self._full(e) from e

    def record(self) -> list[dict[str, Any]]:
        """Every whole line of the record; a torn last one is as if it had not been written."""
        path = self.path / "record.jsonl"
        try:
            lines = path.read_bytes().decode(errors="replace").split("\n") if path.exists() else []
        except OSError as e:
            raise RecordError(f"{path}: cannot be read ({e.strerror}). Look at its permissions.") from e
        found = [_parsed(line) for line in lines[:-1]]  # what follows the last line break is torn
        while found and not found[-1]:  # so are zeros, where the power failed
            found.pop()
        for i, entry in enumerate(found):
            if entry.get("round") != i + 1:
                raise RecordError(f"{path}, line {i + 1}: is not round {i + 1}. The record was changed by hand.")
        return found

    def cut(self, rounds: int) -> list[dict[str, Any]]:
        """Forget what came after this many rounds."""
        kept = self.record()[:rounds]
        self._replace("record.jsonl", "".join(json.dumps(e) + "\n" for e in kept).encode())
        return kept

    def settle(self) -> None:
        """See the record on the disk: a checkpoint must never be ahead of it, even if the power fails."""
        if self.has("record.jsonl"):
            with (self.path / "record.jsonl").open("rb") as f:
                os.fsync(f.fileno())

    def save(self, name: str, state: Tree) -> None:
        """Write tensors in one step: after a crash there is the old file or the new one, whole."""
        self._draft(name, lambda path: torch.save(state, path))

    def stream(self, name: str, pieces: Iterable[Any]) -> None:
        """Write pieces of bytes in one step, without holding them all."""

        def write(path: Path) -> None:
            with path.open("wb") as f:
                for piece in pieces:
                    f.write(piece)

        self._draft(name, write)

    def load(self, name: str) -> Tree:
        """Read what `save` wrote; nothing in the file is executed."""
        path = self.path / name
        try:
            found: Tree = torch.load(path, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise RecordError(f"{self.path}: has no {name}, so there is nothing to go on from.") from None
        except Exception as e:
            what = str(e).strip().partition("\n")[0] or type(e).__name__
            raise RecordError(f"{path}: cannot be read ({what}). Start again in a new folder.") from e
        return found

    def has(self, name: str) -> bool:
        """Is there such a file?"""
        return (self.path / name).exists()

    def _replace(self, name: str, content: bytes, settle: bool = True) -> None:
        self._draft(name, lambda path: path.write_bytes(content), settle)

    def _draft(self, name: str, write: Callable[[Path], object], settle: bool = True) -> None:
        draft = self.path / f".{name}.{os.getpid()}.draft"
        try:
            write(draft)
            if settle:
                with draft.open("rb") as f:
                    os.fsync(f.fileno())
            draft.replace(self.path / name)
        except (OSError, RuntimeError) as e:  # torch.save reports a full disk as a RuntimeError
            draft.unlink(missing_ok=True)
            raise self._full(e) from e

    def _full(self, e: Exception) -> RecordError:
        return RecordError(
            f"{self.path}: could not be written ({e}). What was there is still whole: free some space, "
            "then go on with --resume."
        )


def _line(entry: Mapping[str, Any]) -> str:
    try:
        return json.dumps(entry, allow_nan=False)
    except (ValueError, TypeError):  # a NaN or a number of numpy's: rare, and slower
        return json.dumps(clean(entry))


def clean(value: Any) -> Any:
    """The value as strict JSON: no NaN (null instead), no tensors or numpy numbers."""
    if isinstance(value, Mapping):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str | int | bool) or value is None:
        return value
    return clean(value.item()) if getattr(value, "ndim", 1) == 0 else clean(value.tolist())


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _lock(where: int, path: Path) -> None:
    try:
        fcntl.flock(where, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RecordError(f"{path}: another process is at work on this run. Wait for it, or stop it first.") from None


def _is_draft(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(".draft")
