"""Showing a long piece of work: a bar with the time left on a terminal, lines elsewhere, or nothing at all."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from atoll.runs.callbacks import Callback, LiveRun

_SHOWN = ("accuracy", "auroc", "perplexity", "mse", "loss", "train_loss")
_SECONDS = 10.0  # between two lines of a log, at most; ten lines at least


class LiveBar:
    """Bars that stand on the terminal within a `with`; the last column is what was `seen`."""

    bar: Progress

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()


def live_progress(console: Console | None, left: ProgressColumn | None = None) -> Progress:
    """What is done of how much, for how long, and how long it will take."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        left or TimeRemainingColumn(),
        TextColumn("{task.fields[seen]}", markup=False),
        console=console,
    )


def metric_in(entry: Mapping[str, Any], leading: str | None = None) -> str | None:
    """The metric that leads, or the first usual one that a line of the record has."""
    return next((m for m in (leading, *_SHOWN) if m and isinstance(entry.get(m), float)), None)


class Shown(Callback):
    """A run that can be followed: its name, and the metric that was last seen."""

    def __init__(self, label: str | None) -> None:
        self.label, self.seen, self.began = label or "", "", False
        self.metric: str | None = None  # that leads

    def on_start(self, run: LiveRun) -> None:
        self.label = self.label or run.experiment.label or str(run.experiment.algorithm["name"])
        self.metric, self.began = run.metric, True

    def see(self, entry: Mapping[str, Any]) -> None:
        """Remember the metric of this line; a training loss only where there is nothing better."""
        name = metric_in(entry, self.metric)
        if name and (name != "train_loss" or not self.seen or self.seen.startswith("train loss")):
            self.seen = f"{name.replace('_', ' ')} {entry[name]:.4g}"


class Bar(Shown):
    """A progress bar on the terminal, from the first round to the last: `run(..., callbacks=[Bar()])`."""

    def __init__(self, label: str | None = None, console: Console | None = None) -> None:
        super().__init__(label)
        self.bar = live_progress(console)

    def on_start(self, run: LiveRun) -> None:
        super().on_start(run)
        self.task = self.bar.add_task(self.label, completed=len(run.history), total=run.experiment.rounds, seen="")
        self.bar.start()

    def on_round(self, run: LiveRun, entry: Mapping[str, Any]) -> None:
        self.see(entry)
        self.bar.update(self.task, completed=len(run.history), seen=self.seen)

    def on_end(self, run: LiveRun, status: str) -> None:
        self.bar.stop()


class LogLines(Shown):
    """A line every ten seconds and for every tenth of the run: for files, SLURM and CI. `every_round`: for each."""

    def __init__(
        self,
        label: str | None = None,
        write: Callable[[str], None] | None = None,
        every_round: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(label)
        self.write, self.every_round, self.now = write or _to_stdout, every_round, now

    def on_start(self, run: LiveRun) -> None:
        super().on_start(run)
        self.before = self.written = len(run.history)
        self.start = self.last = self.now()
        since = f" after round {self.before}" if self.before else ""
        self.write(f"{self.label}: {run.experiment.rounds} rounds, begins{since}, in {run.folder}")

    def on_round(self, run: LiveRun, entry: Mapping[str, Any]) -> None:
        self.see(entry)
        done, rounds = len(run.history), run.experiment.rounds
        tenth = 10 * done // rounds > 10 * self.written // rounds
        if self.every_round or tenth or self.now() - self.last >= _SECONDS:
            self._line(done, rounds, entry)

    def _line(self, done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        self.written, self.last = done, self.now()
        spent = self.last - self.start
        left = spent / (done - self.before) * (rounds - done)
        numbers = [f"{name} {value:.4g}" for name, value in entry.items() if isinstance(value, float)]
        shown = numbers if self.every_round else [self.seen] * bool(self.seen)
        words = [f"{self.label}: round {done} of {rounds}", *shown, _clock(spent), f"{_clock(left)} left"]
        self.write(", ".join(words))

    def on_end(self, run: LiveRun, status: str) -> None:
        if self.began:
            self.write(f"{self.label}: {status} after round {len(run.history)}, {_clock(self.now() - self.start)}")


def shown(progress: bool | None) -> list[Callback]:
    """`progress=` of `run` and `simulate`: a bar in a terminal or notebook, else lines, if they are asked for."""
    console = Console()
    interactive = console.is_terminal or console.is_jupyter
    if progress is False or (progress is None and not interactive):
        return []
    return [Notes(), Bar(console=console) if interactive else LogLines()]


class Notes(Callback):
    """What there is to say before the first round."""

    def on_start(self, run: LiveRun) -> None:
        for note in run.notes:
            _to_stdout(f"Note: {note}")


def _clock(seconds: float) -> str:
    """Like the bar's.

    >>> _clock(75), _clock(4000)
    ('1:15', '1:06:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _to_stdout(line: str) -> None:
    print(line, file=sys.stdout, flush=True)  # a log that is followed
