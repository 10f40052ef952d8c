"""A bar over the runs of a suite, with the time that is left as far as rounds were measured."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text

from atoll.experiment import Experiment
from atoll.records import FINISHED
from atoll.runs import LiveBar
from atoll.suites.sweeps import CellsBar, Events, SweepCell


@dataclass
class RoundPace:
    """Seconds, and the rounds of single runs that they were spent on."""

    seconds: float = 0.0
    rounds: int = 0

    @property
    def each(self) -> float:
        """Seconds of one round of one run."""
        return self.seconds / self.rounds if self.rounds else math.nan


@dataclass
class TimeLeft:
    """The time that is left: of every run its rounds, at the pace of runs of its kind; else at that of all."""

    jobs: int = 1  # tasks at once
    now: Callable[[], float] = time.monotonic
    left: dict[str, tuple[tuple[str, ...], int]] = field(default_factory=dict)  # name -> kinds, rounds that are left
    paces: dict[str, RoundPace] = field(default_factory=dict)  # by kind, the most general one last
    at: dict[str, float] = field(default_factory=dict)  # when a run's task was last heard of
    task: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the runs that are one task

    def expect(self, cells: Sequence[SweepCell]) -> None:
        """These are to be run, and nothing else."""
        self.left = {cell.name: (kinds(cell.experiment), cell.experiment.rounds) for cell in cells}

    def began(self, names: Sequence[str]) -> None:
        for name in names:
            self.task[name], self.at[name] = tuple(names), self.now()

    def round(self, name: str, done: int, rounds: int) -> None:
        """A run has made a round; what has passed since its task was last heard of went into it."""
        if name not in self.left or name not in self.at:
            return
        kinds, before = self.left[name]
        spent, new = self.now() - self.at[name], max(0, before - (rounds - done))
        for other in self.task[name]:
            self.at[other] = self.now()
        for kind in kinds:
            pace = self.paces.setdefault(kind, RoundPace())
            pace.seconds, pace.rounds = pace.seconds + spent, pace.rounds + min(1, new)
        self.left[name] = kinds, rounds - done

    def ended(self, name: str) -> None:
        self.left.pop(name, None)

    @property
    def seconds(self) -> float:
        """What is left, with all workers at work; NaN as long as nothing was measured."""
        return math.fsum(rounds * self._pace(kinds) for kinds, rounds in self.left.values()) / max(1, self.jobs)

    def _pace(self, kinds: Sequence[str]) -> float:
        known = (self.paces[kind].each for kind in kinds if kind in self.paces)
        return next((pace for pace in known if math.isfinite(pace)), math.nan)


def kinds(experiment: Experiment) -> tuple[str, ...]:
    """What decides how long a round takes, from all of it to nothing of it."""
    task, local = experiment.task.model_dump(), experiment.local.model_dump()
    near = [experiment.data, task, local]
    full = [*near, experiment.partition, experiment.cohort, experiment.algorithm["name"]]
    return tuple(json.dumps(k, sort_keys=True) for k in (full, near, [experiment.data, task], []))


def words(seconds: float) -> str:
    """A time to come, as rough as it is.

    >>> words(45.2), words(600), words(9000), words(float("nan"))
    ('45 s', '10 min', '2 h 30 min', '?')
    """
    if not math.isfinite(seconds):
        return "?"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


class SuiteBar(LiveBar, Events):
    """`with SuiteBar(later, jobs) as bar: atoll.bench.run(..., events=bar)`; `later` are runs of the second stage."""

    def __init__(self, later: Sequence[SweepCell], jobs: int = 1, console: Console | None = None) -> None:
        self.later = list(later)
        self.estimate = TimeLeft(jobs)
        self.cells = CellsBar(0, console, _Left(self.estimate))
        self.bar = self.cells.bar
        self.bar.update(self.cells.whole, description="runs")
        self.known: set[str] = set()  # runs of the stages so far

    def expect(self, cells: Sequence[SweepCell], left: Sequence[SweepCell]) -> None:
        """A stage begins with these cells, of which some are left to run."""
        later, self.later = ([], []) if self.known else (self.later, self.later)
        self.known |= {cell.name for cell in cells}
        self.estimate.expect([*left, *later])
        self.bar.update(self.cells.whole, total=len(self.known) + len(later))
        for name in {cell.name for cell in cells} - {cell.name for cell in left}:
            self.cells.ended(name, FINISHED)

    def began(self, names: Sequence[str]) -> None:
        self.estimate.began(names)
        self.cells.began(names)

    def round(self, names: Sequence[str], done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        for name in names:
            self.estimate.round(name, done, rounds)
        self.cells.round(names, done, rounds, entry)

    def ended(self, name: str, state: str) -> None:
        self.estimate.ended(name)
        self.cells.ended(name, state)


class _Left(ProgressColumn):
    """The suite's own estimate on the first row, and the usual one on those below."""

    def __init__(self, estimate: TimeLeft) -> None:
        super().__init__()
        self.estimate, self.usual = estimate, TimeRemainingColumn()

    def render(self, task: Task) -> Text:
        """The time that is left."""
        if task.id > 0:
            return self.usual.render(task)
        return Text(f"about {words(self.estimate.seconds)}", style="progress.remaining")
