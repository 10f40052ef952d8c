"""The executor on a Ray cluster: a task is a remote function, and what it learns is in the shared folder."""

from __future__ import annotations

import os
import socket
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.errors import ConfigError, TrainingError
from atoll.records import INTERRUPTED, RunFolder, failed
from atoll.suites.sweeps.cell_tasks import CellTask, Events, perform
from atoll.suites.sweeps.signals import deadline, terminable
from atoll.suites.sweeps.sweep_table import Resources

RETRIES = 3  # of a task whose worker was lost; it goes on from the cells' checkpoints
_GLANCE = 0.5  # seconds between two looks at the records
_GRACE = 120.0  # seconds for a cancelled task to finish its round


@dataclass(frozen=True)
class Share:
    """What each task takes of the cluster, and how many run at once."""

    resources: Resources = Resources()
    jobs: int | None = None  # None: as many as the cluster takes


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Ray, with a cluster: the one that this process has already, or the one at the address. Left as it was found."""
    ray = package()
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address)
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def execute(
    ray: Any, tasks: Sequence[CellTask], share: Share, events: Events, until: float | None = None
) -> dict[str, str]:
    """Run the tasks, `until` a moment; the state of every cell that was reached, by its name."""
    with terminable(), deadline(until):
        return Flight(ray, tasks, share, events).run() if tasks else {}


def package() -> Any:
    """Ray, or what to do about it."""
    try:
        import ray
    except ImportError as e:
        raise ConfigError(
            f"--executor ray: Ray is not installed ({e}). pip install 'atoll[ray]', or use --executor local."
        ) from e
    return ray


def _connect(ray: Any, address: str | None) -> None:
    try:
        _knock(address or "")
        ray.init(address=address, log_to_driver=False)
    except (OSError, RuntimeError, ValueError) as e:
        why = str(e).strip().partition("\n")[0].removesuffix(".")
        raise TrainingError(
            f"--address: no Ray answers at {address or 'this machine'} ({why}). Start one with `ray start --head`, "
            "and give the address that it prints."
        ) from e


def _knock(address: str) -> None:
    """Is anybody there? Ray itself would ask for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


class Flight:
    """Tasks that are under way."""

    def __init__(self, ray: Any, tasks: Sequence[CellTask], share: Share, events: Events) -> None:
        self.ray, self.events = ray, events
        self.left = deque(tasks)
        self.most = share.jobs or len(tasks)
        self.under_way: dict[Any, CellTask] = {}
        self.tries: Counter[str] = Counter()  # by the name of a task's first cell
        self.seen: dict[str, int] = {}
        self.states: dict[str, str] = {}
        self.remote = ray.remote(**_amounts(share.resources, tasks[0].device), max_retries=RETRIES)(remotely)

    def run(self) -> dict[str, str]:
        """Every task, or those that were begun before a Ctrl-C; a second one does not wait for them."""
        try:
            while self.left or self.under_way:
                while self.left and len(self.under_way) < self.most:
                    task = self.left.popleft()
                    self.under_way[self.remote.remote(task, str(Path.cwd()))] = task
                self._look()
        except KeyboardInterrupt:
            with suppress(KeyboardInterrupt):
                self._land()
        return self.states

    def _look(self) -> None:
        """Wait a little for tasks to end; say what the records of the others show."""
        ready, _ = self.ray.wait(list(self.under_way), num_returns=1, timeout=_GLANCE)
        for ref in ready:
            task = self.under_way.pop(ref)
            states = self._result(ref, task)
            if (
                INTERRUPTED in states.values() and self.tries[task.cells[0].name] < RETRIES
            ):  # the cluster wanted the worker back
                self.tries[task.cells[0].name] += 1
                self.left.append(task)
            else:
                self._told(states)
        for task in self.under_way.values():
            for number in range(len(task.cells)):
                self._glance(task, number)

    def _land(self) -> None:
        """A Ctrl-C for everybody: they finish the round and write a checkpoint."""
        self.left.clear()
        for ref in self.under_way:
            self.ray.cancel(ref, force=False)
        if self.under_way:
            ready, _ = self.ray.wait(list(self.under_way), num_returns=len(self.under_way), timeout=_GRACE)
            for ref in ready:
                self._told(self._result(ref, self.under_way[ref]))

    def _result(self, ref: Any, task: CellTask) -> dict[str, str]:
        try:
            states: dict[str, str] = self.ray.get(ref)
        except self.ray.exceptions.TaskCancelledError:
            return {cell.name: INTERRUPTED for cell in task.cells}
        except self.ray.exceptions.RayError as e:
            why = str(e).strip().partition("\n")[0]
            return {cell.name: failed(f"the cluster could not run it ({why}).") for cell in task.cells}
        return states

    def _told(self, states: dict[str, str]) -> None:
        for name, state in states.items():
            self.states[name] = state
            self.events.ended(name, state)

    def _glance(self, task: CellTask, number: int) -> None:
        """How far a cell is, by the last line of its record."""
        cell, entry = task.cells[number], RunFolder(task.folders[number]).last_line()
        done = int(entry.get("round", 0))
        if done == self.seen.get(cell.name, 0):
            return
        if cell.name not in self.seen:
            self.events.began([cell.name])
        self.seen[cell.name] = done
        self.events.round([cell.name], done, cell.experiment.rounds, entry)


def remotely(task: CellTask, home: str) -> dict[str, str]:
    """The task on a machine of the cluster; called again where a worker was lost, it goes on from the checkpoints."""
    with suppress(OSError):
        os.chdir(home)  # paths in the file are seen from where the sweep was started
    return perform(task, Events())


def _amounts(resources: Resources, device: str) -> dict[str, float]:
    usual = 1.0 if device == "cuda" else 0.0
    return {"num_cpus": resources.cpus, "num_gpus": usual if resources.gpus is None else resources.gpus}
