"""Running a sweep: expand it, leave out what is done, group the rest into tasks, and hand these to an executor."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from atoll.errors import ConfigError
from atoll.experiment import Device, find_device
from atoll.experiment import read as read_file
from atoll.records import RUNNING, SweepFolder
from atoll.runs import Callback
from atoll.suites.sweeps import local_executor, ray_executor
from atoll.suites.sweeps import sweep_table as table
from atoll.suites.sweeps.axes import SweepCell, expand
from atoll.suites.sweeps.cell_tasks import CellTask, Events
from atoll.suites.sweeps.packed_callbacks import pack
from atoll.suites.sweeps.stacking import halved, stacks
from atoll.suites.sweeps.sweep_outcome import Sweep
from atoll.suites.sweeps.worker import leave_if_worker

Executor = Literal["local", "ray"]
Source = str | Path | Mapping[str, Any]


@dataclass(frozen=True)
class SweepPlan:
    """A sweep, read and checked."""

    table: table.SweepTable
    cells: list[SweepCell]


def plan(source: Source, overrides: Sequence[str] = ()) -> SweepPlan:
    """The sweep of a file (or of a dict like one), with changes such as "rounds=5"; every cell has been checked."""
    where = source if isinstance(source, str | Path) else None
    raw = table.change(read_file(source) if isinstance(source, str | Path) else source, overrides)
    if where is not None and "sweep" not in raw:
        raise ConfigError(
            f"{where}: has no [sweep] table. For a single run use: atoll run {where}. For a sweep add the table, "
            'with seeds = 3 or an axis such as "algorithm.lr" = [0.05, 0.1].'
        )
    return SweepPlan(table.read(raw)[1], expand(raw))


def run(
    sweep: Source | SweepPlan,
    out: Path | str | None = None,
    *,
    executor: Executor = "local",
    jobs: int | None = None,
    address: str | None = None,
    resume: bool = False,
    device: Device = "auto",
    stack: bool | None = None,
    callbacks: Sequence[Callback] = (),
    events: Events | None = None,
    until: float | None = None,
) -> Sweep:
    """Run every cell of a sweep that is not done yet, and return what came of them.

    `sweep` is a path, a dict with a "sweep" table, or a `plan`. `jobs` tasks run at once: on this machine (1 unless
    said) in as many processes, on Ray as many as the cluster takes unless said. `stack=False` runs every cell by
    itself. A cell that fails does not stop the others: see `Sweep.failed`. Ctrl-C ends with checkpoints,
    and so does `until`, a moment of `time.monotonic()`. Every run has `callbacks` of its own: copies, made by pickle.
    """
    leave_if_worker()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "sweep: torchrun spreads one run over processes; a sweep has many. Start it without torchrun, with jobs = "
            "N or executor = 'ray'."
        )
    if out is None and not isinstance(sweep, str | Path):
        raise ConfigError("out: is missing. Name the sweep's folder.")
    place = SweepFolder(Path(out) if out is not None else default_folder(sweep))  # type: ignore[arg-type]
    planned = sweep if isinstance(sweep, SweepPlan) else plan(sweep)
    _check(executor, jobs, address, device)
    packed = pack(callbacks, executor, jobs or 1)
    place.claim(resume)
    with ray_executor.connected(address) if executor == "ray" else nullcontext() as ray, place.held():
        book = Book(planned, place, events or Events())
        left = [cell for cell in planned.cells if cell.name not in book.states]
        work = tasks(left, place, planned.table.stack if stack is None else stack, jobs or 1, device)
        work = [replace(task, callbacks=packed) for task in work]
        if executor == "ray":
            threads = max(1, int(planned.table.resources.cpus))
            work = [replace(task, threads=threads) for task in work]
            ray_executor.execute(ray, work, ray_executor.Share(planned.table.resources, jobs), book, until)
        else:
            local_executor.execute(work, jobs or 1, book, until)
    return Sweep(place.path, planned.cells, book.states)


def default_folder(file: str | Path) -> Path:
    """runs/<the file's name>: it does not follow what is in the file, so that a changed file goes on there."""
    return Path("runs") / Path(file).stem


def tasks(cells: Sequence[SweepCell], place: SweepFolder, stack: bool, jobs: int, device: Device) -> list[CellTask]:
    """The cells in tasks, at least one for every worker where there are cells enough."""
    groups = halved(stacks(cells, device), jobs) if stack else [[cell] for cell in cells]
    return [CellTask(tuple(group), tuple(place.place(c).absolute() for c in group), device) for group in groups]


class Book(Events):
    """Keeps sweep.json up to date, and passes everything on. Knows from the start what is done."""

    def __init__(self, planned: SweepPlan, place: SweepFolder, events: Events) -> None:
        self.planned, self.place, self.events = planned, place, events
        self.states = {cell.name: state for cell in planned.cells if (state := place.done(cell))}
        self._write({})
        for name, state in self.states.items():
            events.ended(name, state)

    def began(self, names: Sequence[str]) -> None:
        """These are running."""
        self._write(dict.fromkeys(names, RUNNING))
        self.events.began(names)

    def round(self, names: Sequence[str], done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        """Only passed on: the records have it."""
        self.events.round(names, done, rounds, entry)

    def ended(self, name: str, state: str) -> None:
        """This one is not running any more."""
        self._write({name: state})
        self.events.ended(name, state)

    def _write(self, states: Mapping[str, str]) -> None:
        self.states |= states
        self.place.write(self.planned.table.axes, self.planned.cells, self.states)


def _check(executor: str, jobs: int | None, address: str | None, device: Device) -> None:
    """What can be said before anything is written."""
    problems = []
    if executor not in ("local", "ray"):
        problems.append(f"--executor: must be 'local' or 'ray' (got {executor!r}).")
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        problems.append(f"--jobs: must be a whole number above 0 (got {jobs}).")
    if address is not None and executor != "ray":
        problems.append("--address: is the address of a Ray cluster. Add --executor ray, or leave it out.")
    if problems:
        raise ConfigError(problems)
    if executor == "local":
        find_device(device)
