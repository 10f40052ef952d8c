"""What ranks leave for each other to find when one of them is lost: in the launcher's store, which outlives them."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PATIENCE = 1.0  # seconds to find out who is gone
_LEAVING = 10.0  # seconds to wait for rank 0's last word


@dataclass
class Notes:
    """Who is where, and why they ended."""

    store: Any
    rank: int
    size: int

    def __post_init__(self) -> None:
        self.store.set(f"who/{self.rank}", f"{os.getpid()} {socket.gethostname()}")

    def failed(self, error: BaseException) -> None:
        """Say why this rank ends."""
        words = f"{type(error).__name__}: {str(error).strip()[:2000]}" if str(error) else type(error).__name__
        self._set(f"failed/{self.rank}", words)

    def left(self) -> None:
        """Rank 0 has said all that it has to say."""
        self._set("left", "1")

    def said(self) -> bool:
        """Has rank 0 said it all? Waits for it for a while, unless it is gone."""
        until = time.monotonic() + _LEAVING
        while time.monotonic() < until:
            if self._get("left"):
                return True
            if _gone(self._get("who/0")):
                return False
            time.sleep(0.05)
        return False

    def verdict(self) -> str | None:
        """Who was lost, and why, as far as that can be known from here."""
        until = time.monotonic() + _PATIENCE
        while True:
            found = [self._lost(r) for r in range(self.size) if r != self.rank]
            told = [words for words in found if words]
            if told or time.monotonic() > until:
                return "; ".join(told) or None
            time.sleep(0.05)

    def _lost(self, rank: int) -> str | None:
        why, who = self._get(f"failed/{rank}"), self._get(f"who/{rank}")
        if why:
            return f"rank {rank} failed: {why}"
        if _gone(who):
            pid, host = str(who).split(" ", 1)
            return f"rank {rank} (process {pid} on {host}) ended without a word: killed, or out of memory?"
        return None

    def _set(self, key: str, value: str) -> None:
        with suppress(RuntimeError):  # the store went with the machine that held it
            self.store.set(key, value)

    def _get(self, key: str) -> str | None:
        with suppress(RuntimeError):
            if self.store.check([key]):
                return str(self.store.get(key).decode())
        return None


def _gone(who: str | None) -> bool:
    """Has this process of this machine ended? Of other machines nothing is known."""
    if who is None:
        return False
    pid, host = who.split(" ", 1)
    if host != socket.gethostname():
        return False
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return Path("/proc/self/stat").exists()
    return state in "ZX"
