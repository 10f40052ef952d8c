"""A task: cells that one worker runs, as a stack if they are several. Done again, it goes on where it was."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from atoll.errors import AtollError, BusyError, RecordError
from atoll.experiment import Device
from atoll.records import INTERRUPTED, RunFolder, ended, failed, keep_traceback
from atoll.runs import Run, Watcher, run, run_together
from atoll.suites.sweeps.axes import SweepCell
from atoll.suites.sweeps.packed_callbacks import PackedCallbacks

T = TypeVar("T")

_PATIENCE = 60.0  # seconds to wait for a worker that has lost its sweep, and is about to stop


@dataclass(frozen=True)
class CellTask:
    """Cells and their folders, and what to run them with."""

    cells: tuple[SweepCell, ...]
    folders: tuple[Path, ...]
    device: Device = "auto"
    threads: int | None = None  # torch's, in a worker
    callbacks: PackedCallbacks = PackedCallbacks()


class Events:
    """Is told what happens to cells, by their names. Tells nobody, unless a hook says otherwise."""

    def expect(self, cells: Sequence[SweepCell], left: Sequence[SweepCell]) -> None:
        """A stage of a suite begins: these are its cells, and these are left to run."""

    def began(self, names: Sequence[str]) -> None:
        """Work on these cells has begun."""

    def round(self, names: Sequence[str], done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        """So many rounds of these cells are over; `entry` is the record's last line."""

    def ended(self, name: str, state: str) -> None:
        """A cell is "finished", "stopped early: why", "interrupted" or "failed: why"."""


def perform(task: CellTask, events: Events) -> dict[str, str]:
    """Run the cells; the state of each by its name. After an interrupt the cells that were not reached have none."""
    if task.threads is not None:
        torch.set_num_threads(task.threads)
    states = _stacked(task, events) if len(task.cells) > 1 else None
    return _one_by_one(task, events) if states is None else states


def _stacked(task: CellTask, events: Events) -> dict[str, str] | None:
    """All cells at once; None if they cannot be, or not all: then each is run by itself, to see which."""
    names = [cell.name for cell in task.cells]
    events.began(names)
    try:
        ran = patiently(
            lambda: run_together(
                [cell.experiment for cell in task.cells],
                list(task.folders),
                resume=True,
                device=task.device,
                callbacks=[task.callbacks.copies() for _ in names],
                watch=[_watcher([name], events) for name in names],
            )
        )
    except KeyboardInterrupt:
        states = [_ended(folder) or INTERRUPTED for folder in task.folders]
        return _report_ended(dict(zip(names, states, strict=True)), events)
    except Exception:
        return None
    return _report_ended({name: _state(one) for name, one in zip(names, ran, strict=True)}, events)


def _state(run: Run) -> str:
    """How a run of a stack ended; the error, where it left the stack because of one, says more than its status."""
    return run.status if run.error is None else failed(str(run.error))


def _ended(folder: Path) -> str | None:
    with suppress(RecordError):
        info = RunFolder(folder).info
        return str(info["status"]) if ended(info) else None
    return None


def _report_ended(states: dict[str, str], events: Events) -> dict[str, str]:
    for name, state in states.items():
        events.ended(name, state)
    return states


def _one_by_one(task: CellTask, events: Events) -> dict[str, str]:
    states: dict[str, str] = {}
    for cell, folder in zip(task.cells, task.folders, strict=True):
        events.began([cell.name])
        states[cell.name] = _one(cell, folder, task, _watcher([cell.name], events))
        events.ended(cell.name, states[cell.name])
        if states[cell.name] == INTERRUPTED:
            break
    return states


def _one(cell: SweepCell, folder: Path, task: CellTask, watch: Watcher) -> str:
    how: dict[str, Any] = {"resume": True, "device": task.device, "watch": watch, "progress": False}
    try:
        return patiently(lambda: run(cell.experiment, folder, callbacks=task.callbacks.copies(), **how)).status
    except KeyboardInterrupt:
        return INTERRUPTED
    except AtollError as e:
        return failed(str(e))
    except Exception as e:
        path = keep_traceback(folder, traceback.format_exc())
        return failed(f"{type(e).__name__}: {e} (traceback in {path})")


def _watcher(names: list[str], events: Events) -> Watcher:
    def watch(done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        events.round(names, done, rounds, entry)

    return watch


def patiently(call: Callable[[], T], seconds: float = _PATIENCE) -> T:
    """A killed sweep's workers stop after their round: try again until they let go, or the time is up.

    Whoever looks first and calls then may be overtaken, so that only the call itself can tell.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return call()
        except BusyError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.05)
