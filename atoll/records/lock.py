"""Locks of the operating system: when their process dies, they are gone."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atoll.errors import BusyError, RecordError


@contextmanager
def locked_folder(path: Path) -> Iterator[None]:
    """Hold a run's folder; a file system without locks has to do without."""
    handle = os.open(path, os.O_RDONLY)
    try:
        _take_if_there_are_locks(handle, path)
        yield
    finally:
        os.close(handle)


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold a file that says who does: on a file system without locks, that note must do."""
    handle = _opened(path)
    try:
        _take_or_read(handle, path.parent)
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(_this_process()).encode(), 0)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _opened(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as e:
        raise RecordError(f"{path.parent}: cannot be written ({e.strerror}). Name another folder with --out.") from e


def _take(handle: int) -> None:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _take_if_there_are_locks(handle: int, folder: Path) -> None:
    try:
        _take(handle)
    except BlockingIOError:
        raise BusyError(f"{folder}: another process is at work on this run. Wait for it, or stop it first.") from None
    except OSError:
        pass


def _take_or_read(handle: int, folder: Path) -> None:
    try:
        _take(handle)
    except BlockingIOError:
        raise _busy(folder, _holder(handle)) from None
    except OSError:
        if _alive(_holder(handle)):
            raise _busy(folder, _holder(handle)) from None


def _this_process() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now(UTC).isoformat(timespec="seconds")}


def _busy(folder: Path, holder: Mapping[str, Any]) -> BusyError:
    who = f"process {holder['pid']} on {holder['host']}, since {holder['since']}" if holder else "another process"
    return BusyError(
        f"{folder}: another sweep is at work here ({who}). Wait for it or stop it first, or name another folder."
    )


def _holder(handle: int) -> dict[str, Any]:
    try:
        note = json.loads(os.pread(handle, 1000, 0))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) and {"pid", "host", "since"} <= note.keys() else {}


def _alive(holder: Mapping[str, Any]) -> bool:
    """Does the process that wrote the note still run? On another machine we cannot know, and say yes."""
    if not holder or holder["host"] != socket.gethostname():
        return bool(holder)
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, ValueError, TypeError):
        return True
    return int(holder["pid"]) != os.getpid()
