"""Waiting for what another process does."""

import time
from collections.abc import Callable


def until(reached: Callable[[], bool], at_work: Callable[[], bool]) -> None:
    """Wait for the moment; a process that ends by itself was too fast, or failed."""
    limit = time.monotonic() + 180
    while not reached():
        assert at_work(), "ended before the moment came"
        assert time.monotonic() < limit, "the moment never came"
        time.sleep(2e-4)  # leave the core to it
