"""A worker process: takes tasks from a line, does them, and says what happens; stops when told, or when left alone."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from atoll.suites.sweeps.cell_tasks import CellTask, Events, perform
from atoll.suites.sweeps.signals import interrupt

NAME = "atoll-worker"  # of the process
UNGUARDED = 117  # its exit status, where the program that it imports starts a sweep again


def leave_if_worker() -> None:
    """A worker imports the program that started it: without a guard it comes to the same call."""
    if multiprocessing.current_process().name == NAME:
        sys.exit(UNGUARDED)


def work(line: Connection, cores: Sequence[int]) -> None:
    """Do tasks until the other end of the line says stop, or is gone."""
    os.setpgrp()  # Ctrl-C on the terminal is for the sweep, which tells us
    signal.signal(signal.SIGTERM, interrupt)
    if cores:
        with suppress(OSError):
            os.sched_setaffinity(0, cores)
    tasks: queue.Queue[CellTask | None] = queue.Queue()
    threading.Thread(target=_listen, args=(line, tasks), daemon=True).start()
    with suppress(KeyboardInterrupt, OSError):
        while (task := tasks.get()) is not None:
            line.send(("done", perform(task, Teller(line))))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _listen(line: Connection, tasks: queue.Queue[CellTask | None]) -> None:
    """A stop, or the end of the sweep's process: like SIGTERM, which waits for the end of a round."""
    with suppress(EOFError, OSError):
        while (message := line.recv()) != "stop":
            tasks.put(message)
    signal.raise_signal(signal.SIGTERM)
    tasks.put(None)


@dataclass(frozen=True)
class Teller(Events):
    """Passes on what happens. If nobody hears it, the work is still checkpointed."""

    line: Connection

    def began(self, names: Sequence[str]) -> None:
        self._tell("began", list(names))

    def round(self, names: Sequence[str], done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        """Pass it on, with the numbers that a bar shows."""
        plain = {k: v for k, v in entry.items() if isinstance(v, float)}
        self._tell("round", list(names), done, rounds, plain)

    def ended(self, name: str, state: str) -> None:
        self._tell("ended", name, state)

    def _tell(self, what: str, *rest: Any) -> None:
        with suppress(OSError):
            self.line.send((what, rest))
