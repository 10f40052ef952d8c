"""Showing a long piece of work: a bar with the time left, or nothing at all."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_SHOWN = ("accuracy", "auroc", "perplexity", "mse", "loss", "train_loss")


class Watcher(Protocol):
    """Is told of every round."""

    def __call__(self, done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        """`done` of `rounds` rounds are over; `entry` is the record's last line, without the ids of the cohort."""
        ...


class Bar:
    """A progress bar on the terminal; `with Bar("fedavg") as bar: run(..., watch=bar)`."""

    def __init__(self, label: str, console: Console | None = None) -> None:
        self.label = label
        self.seen = ""
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[seen]}"),
            console=console,
        )
        self.task = self.bar.add_task(label, total=None, seen="")

    def __enter__(self) -> Bar:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        self.bar.stop()

    def __call__(self, done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        name = next((m for m in _SHOWN if isinstance(entry.get(m), float)), None)
        if name and (name != "train_loss" or not self.seen):
            self.seen = f"{name.replace('_', ' ')} {entry[name]:.4g}"
        self.bar.update(self.task, completed=done, total=rounds, seen=self.seen)


def silent(done: int, rounds: int, entry: Mapping[str, Any]) -> None:
    """Show nothing."""
