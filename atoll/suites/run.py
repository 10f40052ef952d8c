"""Running a suite: trials first, then what they chose, at every seed; all in one folder, where nothing is run twice."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.errors import ConfigError
from atoll.experiment import Device
from atoll.records import INTERRUPTED, Results, SuiteFolder, Tuning
from atoll.runs import Callback
from atoll.suites.cleanup import Tidying
from atoll.suites.collect import Reader, collect
from atoll.suites.expand import only as matching
from atoll.suites.expand import places
from atoll.suites.experiments import CellPlan, cell_plans, unique
from atoll.suites.suite import FULL, Suite, read
from atoll.suites.suite_outcome import Bench
from atoll.suites.sweeps import (
    Events,
    Executor,
    Resources,
    SweepCell,
    SweepPlan,
    SweepTable,
    leave_if_worker,
    terminable,
)
from atoll.suites.sweeps import run as sweep


@dataclass(frozen=True)
class Work:
    """A suite that is ready to run: all its experiments have been checked."""

    suite: Suite  # at its size
    tuning: Tuning
    jobs: list[CellPlan]  # of every place
    wanted: set[tuple[str, str]]  # the places that were asked for
    command: str  # how it was asked for, without paths

    @property
    def chosen(self) -> list[CellPlan]:
        """The jobs that were asked for, in the order of the table."""
        return [job for job in self.jobs if job.place.key in self.wanted]

    def first(self) -> list[SweepCell]:
        """Stage one: every trial, and the runs of places where there is nothing to choose."""
        return unique([cell for job in self.chosen for cell in _first(job)])

    def second(self, folder: Path) -> list[SweepCell]:
        """Stage two: the runs of the settings that the trials chose, as far as they have."""
        reader = Reader(self.suite, SuiteFolder(folder), self.tuning)
        picked = [reader.chosen(job) for job in self.chosen if job.tuned]
        return unique([cell for option in picked if option for cell in option.finals])

    def only_trials(self) -> set[str]:
        """The digests of experiments that are there to choose a setting, and for nothing else."""
        options = [option for job in self.jobs for option in job.options]
        return {c.digest for o in options for c in o.trials} - {c.digest for o in options for c in o.finals}

    def collect(self, folder: Path) -> Results:
        """What is in the folder by now."""
        return collect(self.suite, self.jobs, self.wanted, folder, self.tuning, self.command)


def prepare(
    suite: str | Path | Suite,
    *,
    size: str = FULL,
    only: Sequence[str] = (),
    seeds: int | None = None,
    tuning: Tuning | None = None,
    overrides: Sequence[str] = (),
) -> Work:
    """Read a suite, apply a size and changes, and check every experiment that may be run for it."""
    _check(seeds, tuning)
    only, overrides = ([x] if isinstance(x, str) else x for x in (only, overrides))
    whole = suite if isinstance(suite, Suite) else read(suite)
    sized = whole.at(size)
    how = tuning or sized.tuning
    own, asked = places(sized, overrides), places(sized, overrides, seeds)
    picked = {place.key: place for place in matching(asked, only, sized.axes)}
    # What was not asked for now may be in the folder from before: with the seeds that the suite has.
    plans = cell_plans(sized, [picked.get(place.key, place) for place in own], how)
    return Work(sized, how, plans, set(picked), command(suite, size, only, seeds, tuning, overrides))


def run(
    suite: str | Path | Suite | Work,
    out: Path | str | None = None,
    *,
    size: str = FULL,
    only: Sequence[str] = (),
    seeds: int | None = None,
    tuning: Tuning | None = None,
    overrides: Sequence[str] = (),
    budget: float | None = None,
    executor: Executor = "local",
    jobs: int | None = None,
    address: str | None = None,
    resume: bool = False,
    device: Device = "auto",
    stack: bool = True,
    callbacks: Sequence[Callback] = (),
    events: Events | None = None,
) -> Bench:
    """Run a suite (a name, a path, or what `prepare` made of one) and return what came of it.

    What is done is never run again. After `budget` seconds nothing new begins, and what is under way ends its round
    and writes a checkpoint, as after Ctrl-C. results.json is written after every stage, whatever happened. Every run,
    trials included, has `callbacks` of its own: copies, made by pickle.
    """
    leave_if_worker()
    until = None if budget is None else time.monotonic() + budget
    if budget is not None and threading.current_thread() is not threading.main_thread():
        raise ConfigError("budget: needs the main thread, which hears the alarm. Leave it out here.")
    work = suite if isinstance(suite, Work) else None
    if work is None:
        work = prepare(suite, size=size, only=only, seeds=seeds, tuning=tuning, overrides=overrides)  # type: ignore[arg-type]
    folder = Path(out) if out is not None else default_folder(work.suite)
    SuiteFolder(folder).claim(resume)
    tidying = Tidying(folder, events or Events(), work.only_trials())
    how: dict[str, Any] = {"executor": executor, "jobs": jobs, "address": address, "device": device, "until": until}
    how["callbacks"] = callbacks
    stages: list[Callable[[], list[SweepCell]]] = [work.first, lambda: work.second(folder)]
    with terminable():
        for stage in stages:
            with suppress(KeyboardInterrupt):
                _stage(work, stage, folder, tidying, stack, how)
            SuiteFolder(folder).write(work.collect(folder))
            if tidying.stopped or _over(until):
                break
    return Bench(folder, work, tidying.stopped, _over(until))


def _stage(
    work: Work, stage: Callable[[], list[SweepCell]], folder: Path, tidying: Tidying, stack: bool, how: dict[str, Any]
) -> None:
    """What is left of these; an interrupt leaves `tidying.stopped`."""
    tidying.stopped = True  # until it is known that nothing stopped it
    cells = stage()
    left = SuiteFolder(folder).left(cells)
    tidying.expect(cells, left)
    axes = {axis: list(values) for axis, values in work.suite.values.items()}
    plan = SweepPlan(SweepTable(axes, stack, Resources()), left)
    tidying.stopped = bool(left) and sweep(plan, folder, resume=True, events=tidying, **how).status == INTERRUPTED


def _over(until: float | None) -> bool:
    return until is not None and time.monotonic() >= until


def default_folder(suite: Suite) -> Path:
    """runs/bench/<name>, with the size if it is not the full one."""
    return Path("runs") / "bench" / (suite.name if suite.size == FULL else f"{suite.name}-{suite.size}")


def command(
    suite: str | Path | Suite,
    size: str = FULL,
    only: Sequence[str] = (),
    seeds: int | None = None,
    tuning: str | None = None,
    overrides: Sequence[str] = (),
    path: bool = False,
) -> str:
    """The command that makes these results, for any machine: a file of one's own by its name alone, unless `path`.

    >>> command("niid-bench", only=["fcube/*"], seeds=3)
    "atoll bench niid-bench --only 'fcube/*' --seeds 3"
    """
    name = suite.name if isinstance(suite, Suite) else str(suite) if path else Path(suite).name
    words = ["atoll", "bench", name]
    words += [] if size == FULL else ["--size", size]
    words += [word for pattern in only for word in ("--only", pattern)]
    words += [] if seeds is None else ["--seeds", str(seeds)]
    words += [] if tuning is None else ["--tuning", tuning]
    return shlex.join([*words, *(word for change in overrides for word in ("--set", change))])


def _first(job: CellPlan) -> Collection[SweepCell]:
    return [c for option in job.options for c in option.trials] if job.tuned else job.options[0].finals


def _check(seeds: int | None, tuning: str | None) -> None:
    problems = []
    if seeds is not None and (isinstance(seeds, bool) or not isinstance(seeds, int) or seeds < 1):
        problems.append(f"--seeds: must be a whole number above 0 (got {seeds}).")
    if tuning not in (None, "validation", "paper", "none"):
        problems.append(f"--tuning: must be 'validation', 'paper' or 'none' (got {tuning!r}).")
    if problems:
        raise ConfigError(problems)
