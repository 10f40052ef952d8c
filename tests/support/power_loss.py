"""A disk that keeps, when the power fails, only what was synced: contents of files, and names in folders."""

import os
import stat
from pathlib import Path

import pytest


class LossyDisk:
    """Remembers what `os.fsync` was asked for; `after_power_loss` is what a folder holds when nothing else is kept."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.contents: dict[int, bytes] = {}  # by inode
        self.names: dict[str, dict[str, int]] = {}  # by folder: which inode each name stands for
        self.fsync = os.fsync
        patch.setattr(os, "fsync", self.sync)

    def sync(self, descriptor: int) -> None:
        self.fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            self.names[str(path)] = {p.name: p.stat().st_ino for p in path.iterdir()}
        else:
            self.contents[os.fstat(descriptor).st_ino] = path.read_bytes()

    def after_power_loss(self, folder: Path, copy: Path) -> None:
        copy.mkdir()
        for name, inode in self.names.get(str(folder), {}).items():
            (copy / name).write_bytes(self.contents.get(inode, b""))
