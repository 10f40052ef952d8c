"""Files of which only the latest version counts, written no more often than anybody could read them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any


class Throttled:
    """Calls `write` with the latest value: at once, then at most once a second, and when it is flushed."""

    def __init__(self, write: Callable[[Mapping[str, Any]], None], seconds: float = 1.0) -> None:
        self.write, self.seconds = write, seconds
        self.waiting: Mapping[str, Any] | None = None
        self.written = -math.inf

    def __call__(self, value: Mapping[str, Any]) -> None:
        """There is a new one."""
        self.waiting = value
        if time.monotonic() - self.written >= self.seconds:
            self.flush()

    def flush(self) -> None:
        """Write what still waits."""
        if self.waiting is not None:
            self.write(self.waiting)
            self.waiting, self.written = None, time.monotonic()
