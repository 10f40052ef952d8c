"""Ctrl-C and SIGTERM, outside of a run's rounds."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def interrupt(number: int, frame: FrameType | None) -> None:
    """A handler that makes any signal a Ctrl-C."""
    raise KeyboardInterrupt


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM is a Ctrl-C: a batch system says goodbye like this."""
    with _handled(signal.SIGTERM, interrupt):
        yield


@contextmanager
def deadline(moment: float | None) -> Iterator[None]:
    """At this moment (of `time.monotonic`) a SIGTERM comes, as from a batch system; for use inside of `terminable`."""
    if moment is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    over, lock, main = False, threading.Lock(), threading.get_ident()

    def ring() -> None:
        with lock:
            if not over:  # nobody may be listening any more
                signal.pthread_kill(main, signal.SIGTERM)  # to the main thread itself, which may be waiting

    clock = threading.Timer(max(0.0, moment - time.monotonic()), ring)
    clock.daemon = True
    clock.start()
    try:
        yield
    finally:
        with lock:
            over = True
        clock.cancel()


@contextmanager
def deaf() -> Iterator[None]:
    """What is started in here begins with Ctrl-C ignored."""
    with _handled(signal.SIGINT, signal.SIG_IGN):
        yield


@contextmanager
def _handled(number: int, handler: object) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)  # type: ignore[arg-type]
    try:
        yield
    finally:
        signal.signal(number, before)
