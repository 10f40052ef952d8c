"""Where fetched data is kept: verified files, and the columns made of them.

    <cache>/files/     archives as they were published, named by their SHA-256
    <cache>/columns/   what the parsers made of them, with digests
    <cache>/partial/   downloads that were cut off and can be resumed; never read as data
    <cache>/locks/     one small file for each thing that is being made

Nothing appears in files/ or columns/ before it is complete and checked: it is written beside and moved in one step.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from atoll.errors import DataError


def cache() -> Path:
    """The folder that ATOLL_DATA names, or atoll/data in the user's cache folder."""
    named = os.environ.get("ATOLL_DATA")
    if named:
        return Path(named).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local"))
    elif sys.platform == "darwin":
        base = Path("~/Library/Caches")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return base.expanduser() / "atoll" / "data"


def offline() -> bool:
    """Was the network ruled out with ATOLL_OFFLINE=1?"""
    return os.environ.get("ATOLL_OFFLINE", "").lower() not in ("", "0", "false", "no")


def cache_folder(name: str) -> Path:
    """A folder of the cache, made if it is not there."""
    path = cache() / name
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise unwritable(e) from e
    return path


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Only one process at a time is inside; the others wait. The system lets go if a process dies."""
    try:
        file = (cache_folder("locks") / name).open("a+b")
    except OSError as e:
        raise unwritable(e) from e
    with file:
        _lock(file)
        try:
            yield
        finally:
            _unlock(file)


def check_disk_space(place: Path, megabytes: float) -> None:
    """Refuse at once what the disk cannot take."""
    free = shutil.disk_usage(place).free / 1e6
    if megabytes > free:
        raise DataError(
            f"the data cache {cache()} has {free:.0f} MB left and {megabytes:.0f} MB are needed. "
            "Make room, or set ATOLL_DATA to a folder on another disk."
        )


@contextmanager
def temporary_folder(place: Path) -> Iterator[Path]:
    """A new empty folder in `place`, gone at the end: what is done is moved out of it in one step."""
    folder = place / f".making-{uuid.uuid4().hex}"
    try:
        folder.mkdir()  # not mkdtemp: a cache may be shared, so the usual permissions hold
    except OSError as e:
        raise unwritable(e) from e
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unwritable(error: OSError) -> DataError:
    """What to say when the cache cannot be written."""
    what = f"the data cache {cache()} cannot be written ({error.strerror})"
    return DataError(f"{what}. Set ATOLL_DATA to a folder of yours with room on its disk.")


def remove_leftovers(place: Path, hours: float = 24.0) -> None:
    """Remove folders that a killed process left behind."""
    for left in place.glob(".making-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > hours * 3600:
                shutil.rmtree(left, ignore_errors=True)


if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[bytes]) -> None:
        while True:
            try:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
                return
            except OSError:  # it gives up after ten seconds
                continue

    def _unlock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX)

    def _unlock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_UN)
