"""Ctrl-C, taken at a good moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_heard: list[threading.Event] = []  # the main thread's, while it listens: it alone hears signals


@contextmanager
def deferred_interrupts() -> Iterator[threading.Event]:
    """Ctrl-C and SIGTERM wait for the end of the round, when all state is whole; a second Ctrl-C does not.

    Inside another such block, and in another thread, it is the main thread's event, if that listens.
    """
    event = _heard[0] if _heard else threading.Event()
    if _heard or threading.current_thread() is not threading.main_thread():
        yield event
        return

    def note(number: int, frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {s: signal.signal(s, note) for s in (signal.SIGINT, signal.SIGTERM)}
    _heard.append(event)
    try:
        yield event
    finally:
        _heard.remove(event)
        for s, handler in before.items():
            signal.signal(s, handler)


def unhurried() -> None:
    """From here on SIGTERM is not heard: torchrun sends it once a rank is lost, and this process is ending as it is."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
