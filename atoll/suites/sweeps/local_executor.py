"""The executor on this machine: tasks in this process, or side by side in worker processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from atoll.errors import ConfigError
from atoll.records import INTERRUPTED, failed
from atoll.suites.sweeps.cell_tasks import CellTask, Events, perform
from atoll.suites.sweeps.signals import deadline, deaf, terminable
from atoll.suites.sweeps.worker import NAME, UNGUARDED, work


def execute(tasks: Sequence[CellTask], jobs: int, events: Events, until: float | None = None) -> dict[str, str]:
    """Run the tasks, `jobs` at a time, `until` a moment; the state of every cell that was reached, by its name."""
    jobs = min(jobs, len(tasks))
    with terminable(), deadline(until):
        return Pool(tasks, jobs, events).run() if jobs > 1 else _here(tasks, events)


def _here(tasks: Sequence[CellTask], events: Events) -> dict[str, str]:
    states: dict[str, str] = {}
    with suppress(KeyboardInterrupt):  # between two cells
        for task in tasks:
            states |= perform(task, events)
            if INTERRUPTED in states.values():
                break
    return states


@dataclass
class WorkerProcess:
    """A process, the line to it, and what it is at."""

    process: BaseProcess
    line: Connection
    task: CellTask | None = None


class Pool:
    """Hands out tasks to worker processes until none is left, or somebody says stop."""

    def __init__(self, tasks: Sequence[CellTask], jobs: int, events: Events) -> None:
        share = max(1, torch.get_num_threads() // max(1, jobs))
        self.left = deque(replace(task, threads=share) for task in tasks)
        self.jobs, self.events = jobs, events
        self.states: dict[str, str] = {}
        self.workers: list[WorkerProcess] = []
        self.stopping = False
        self.cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

    def run(self) -> dict[str, str]:
        """Every task, or those that were begun before a Ctrl-C; a second one does not wait for them."""
        try:
            for number in range(self.jobs):
                self.workers.append(self._start(number))
            self._serve()
        except KeyboardInterrupt:
            with suppress(KeyboardInterrupt):
                self._stop()
        finally:
            self._end()
        return self.states

    def _stop(self) -> None:
        """Let everybody finish the round and write a checkpoint."""
        self.stopping = True
        self.left.clear()
        for worker in self.workers:
            with suppress(OSError):
                worker.line.send("stop")
        self._serve()

    def _serve(self) -> None:
        """Give out work and hear what came of it, until nobody is at work."""
        while True:
            for worker in self.workers:
                if worker.task is None and self.left:
                    self._give(worker)
            if all(worker.task is None for worker in self.workers):
                return
            for line in wait([worker.line for worker in self.workers if worker.task]):
                worker = next(w for w in self.workers if w.line is line)
                try:
                    self._heard(worker, worker.line.recv())
                except (EOFError, OSError):
                    self._lost(worker)

    def _give(self, worker: WorkerProcess) -> None:
        worker.task = self.left.popleft()
        try:
            worker.line.send(worker.task)
        except OSError:
            self.left.appendleft(worker.task)
            worker.task = None
            self._renew(worker)

    def _heard(self, worker: WorkerProcess, message: tuple[str, Any]) -> None:
        what, rest = message
        if what == "done":
            worker.task = None
            if INTERRUPTED in rest.values():  # somebody stopped the worker itself
                self.left.clear()
        elif what == "ended":
            self._told(*rest)
        elif what == "began":
            self.events.began(*rest)
        else:
            self.events.round(*rest)

    def _lost(self, worker: WorkerProcess) -> None:
        """The process died: its cells have failed, but for those that had ended; a new one takes the next task."""
        worker.process.join()
        code = worker.process.exitcode or 0
        _check_guarded(code)
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
        self._give_up(worker, INTERRUPTED if self.stopping else failed(f"its worker process was ended {how}."))
        if self.left:
            self._renew(worker)

    def _give_up(self, worker: WorkerProcess, state: str) -> None:
        for cell in worker.task.cells if worker.task else ():
            if cell.name not in self.states:
                self._told(cell.name, state)
        worker.task = None

    def _told(self, name: str, state: str) -> None:
        self.states[name] = state
        self.events.ended(name, state)

    def _renew(self, worker: WorkerProcess) -> None:
        worker.line.close()
        worker.process.join()
        _check_guarded(worker.process.exitcode or 0)
        self.workers[self.workers.index(worker)] = self._start(self.workers.index(worker))

    def _start(self, number: int) -> WorkerProcess:
        """A process with its share of the cores, which a Ctrl-C on the terminal does not reach."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        cores = self.cores[number % len(self.cores or [0]) :: self.jobs]
        process = context.Process(target=work, name=NAME, args=(theirs, cores))
        with deaf():
            process.start()
        theirs.close()
        return WorkerProcess(process, ours)

    def _end(self) -> None:
        for worker in self.workers:
            if worker.task is not None:  # a second Ctrl-C
                worker.process.kill()
                self._give_up(worker, INTERRUPTED)
            worker.line.close()
        for worker in self.workers:
            worker.process.join()


def _check_guarded(exit_status: int) -> None:
    if exit_status == UNGUARDED:
        raise ConfigError(
            "jobs: worker processes import this program, and came to the line that starts them. Put it under "
            "`if __name__ == '__main__':`, or leave jobs out."
        ) from None
