"""What ranks leave for each other to find when one of them is lost: in the launcher's store, which outlives them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PATIENCE = 1.0  # seconds to find out who is gone
_LEAVING = 3.0  # seconds to wait for rank 0's last word


@dataclass
class FailureStore:
    """Who is where, and why they ended."""

    store: Any
    rank: int
    size: int
    turn: int = 0  # runs in these processes so far: what was said of one is no news of the next
    lost: list[int] = field(default_factory=list)  # ranks, as far as this one found out

    def __post_init__(self) -> None:
        self.store.set(f"who/{self.rank}", f"{os.getpid()} {socket.gethostname()}")

    def report_failure(self, error: BaseException) -> None:
        """Say why this rank ends."""
        words = f"{type(error).__name__}: {str(error).strip()[:2000]}" if str(error) else type(error).__name__
        self._set(f"failed/{self.turn}/{self.rank}", words)

    def report_follows(self) -> None:
        """This rank ends because another did: it is not the one to look for."""
        self._set(f"follows/{self.turn}/{self.rank}", "1")

    def announce_exit(self) -> None:
        """Rank 0 has said all that it has to say. The store may go with it, so the others get a moment to hear that."""
        self._set("left", "1")
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until and not all(map(self._heard, range(1, self.size))):
            time.sleep(0.02)

    def _heard(self, rank: int) -> bool:
        return self._get(f"heard/{rank}") is not None or _gone(self._get(f"who/{rank}"))

    def rank_zero_explained(self) -> bool:
        """Has rank 0 said it all? Waits for it for a while, unless it is gone.

        If another rank was lost, rank 0 will say so, but may be waiting for this one in turn: do not keep it.
        """
        if self.lost:
            return 0 not in self.lost
        until = time.monotonic() + _LEAVING
        while time.monotonic() < until:
            if self._get("left"):
                self._set(f"heard/{self.rank}", "1")
                return True
            if self.store is None or _gone(self._get("who/0")):
                return False
            time.sleep(0.05)
        return False

    def verdict(self) -> str | None:
        """Who was lost, and why, as far as that can be known from here."""
        until = time.monotonic() + _PATIENCE
        while True:
            others = (rank for rank in range(self.size) if rank != self.rank)
            reasons = {rank: why for rank in others if (why := self._lost(rank))}
            if reasons or time.monotonic() > until:
                self.lost = list(reasons)
                return "; ".join(reasons.values()) or None
            time.sleep(0.05)

    def _lost(self, rank: int) -> str | None:
        why, who = self._get(f"failed/{self.turn}/{rank}"), self._get(f"who/{rank}")
        if why:
            return f"rank {rank} failed: {why}"
        if _gone(who) and not self._get(f"follows/{self.turn}/{rank}"):
            pid, host = str(who).split(" ", 1)
            return f"rank {rank} (process {pid} on {host}) ended without a word: killed, or out of memory?"
        return None

    def _set(self, key: str, value: str) -> None:
        with self._there():
            if self.store is not None:
                self.store.set(key, value)

    def _get(self, key: str) -> str | None:
        with self._there():
            if self.store is not None and self.store.check([key]):
                return str(self.store.get(key).decode())
        return None

    @contextmanager
    def _there(self) -> Iterator[None]:
        """The store may have gone with the process that held it. It is not asked again: torch would warn each time."""
        try:
            yield
        except RuntimeError:
            self.store = None


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
