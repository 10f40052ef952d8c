"""Showing a long piece of work: a bar with the time left, or nothing at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, Self

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

_SHOWN = ("accuracy", "auroc", "perplexity", "mse", "loss", "train_loss")


class Watcher(Protocol):
    """Is told of every round."""

    def __call__(self, done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        """`done` of `rounds` rounds are over; `entry` is the record's last line, without the ids of the cohort."""
        ...


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


class Bar(LiveBar):
    """A progress bar on the terminal; `with Bar("fedavg") as bar: run(..., watch=bar)`."""

    def __init__(self, label: str, console: Console | None = None, metric: str | None = None) -> None:
        self.label, self.metric = label, metric
        self.seen = ""
        self.bar = live_progress(console)
        self.task = self.bar.add_task(label, total=None, seen="")

    def __call__(self, done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        name = metric_in(entry, self.metric)
        if name and (name != "train_loss" or not self.seen):
            self.seen = f"{name.replace('_', ' ')} {entry[name]:.4g}"
        self.bar.update(self.task, completed=done, total=rounds, seen=self.seen)


def silent(done: int, rounds: int, entry: Mapping[str, Any]) -> None:
    """Show nothing."""
