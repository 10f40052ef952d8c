"""Where a round's time goes: named stretches of code, which cost nothing unless somebody listens.

>>> with listening() as heard:
...     with phase("server"):
...         with phase("reduce"):
...             pass
>>> sorted(heard.seconds)
['reduce', 'server']
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

# "engine": what an engine does besides: stacking, copying, waiting
ORDER = (
    "sampling",
    "gather",
    "forward and backward",
    "transforms",
    "reduce",
    "engine",
    "server",
    "evaluation",
    "record",
)
_NOTHING: AbstractContextManager[None] = nullcontext()


class Heard:
    """Seconds by phase, without those of the phases inside it; added up over threads."""

    def __init__(self, wait: Callable[[], None] | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.spans: list[tuple[str, float, float, int]] = []  # name, began, ended, thread
        self.wait = wait  # for a device to be done, so that its time falls into the right phase
        self._lock, self._open = threading.Lock(), threading.local()

    @contextmanager
    def hear(self, name: str) -> Iterator[None]:
        """This stretch."""
        outer = getattr(self._open, "inside", None)
        self._open.inside = inside = [0.0]
        began = self._now()
        try:
            yield
        finally:
            ended = self._now()
            self._open.inside = outer
            if outer is not None:
                outer[0] += ended - began
            with self._lock:
                self.seconds[name] = self.seconds.get(name, 0.0) + ended - began - inside[0]
                self.spans.append((name, began, ended, threading.get_ident()))

    def _now(self) -> float:
        if self.wait is not None:
            self.wait()
        return time.perf_counter()


_listener: Heard | None = None


def phase(name: str) -> AbstractContextManager[Any]:
    """This stretch of code belongs to this phase."""
    return _NOTHING if _listener is None else _listener.hear(name)


def heard() -> bool:
    """Does somebody listen? Then captured code must run piece by piece."""
    return _listener is not None


@contextmanager
def listening(wait: Callable[[], None] | None = None) -> Iterator[Heard]:
    """Inside, phases are timed."""
    global _listener
    before, _listener = _listener, Heard(wait)
    try:
        yield _listener
    finally:
        _listener = before
