"""What is told of a run while it goes on, and may end it: loggers, bars, rules of one's own for stopping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from atoll.errors import ConfigError
from atoll.experiment import Experiment
from atoll.tree import Tree


@dataclass(frozen=True, eq=False)
class LiveRun:
    """A run while it goes on, as callbacks see it."""

    experiment: Experiment
    folder: Path
    history: Sequence[Mapping[str, Any]]  # the rounds so far: lines of the record, without the ids of cohorts
    params: Callable[[], Tree]  # the model as it is now, on the host, keyed like the module's state
    notes: Sequence[str] = ()  # what the data gave reason to say
    metric: str | None = None  # the one that leads


class Callback:
    """Derive from it, write what you need, and hand it over: `atoll.run(..., callbacks=[MyCallback()])`.

    Hooks run in the process that writes the run (rank 0 of several), in the order of the list. What they raise ends the
    run as a failure. They see the record and cannot change the model, so that a run is the same with and without them.
    """

    def on_start(self, run: LiveRun) -> None:
        """Everything is built and checked; rounds begin, or go on after those in `run.history`."""

    def on_round(self, run: LiveRun, entry: Mapping[str, Any]) -> str | None:
        """A round was made; `entry` is its line of the record without ids. A text ends the run, and says why."""
        return None

    def on_end(self, run: LiveRun, status: str) -> None:
        """Nothing more comes: "finished", "stopped early: why", "interrupted" or "failed: what"."""


class Watcher(Protocol):
    """A function that is told of every round."""

    def __call__(self, done: int, rounds: int, entry: Mapping[str, Any]) -> None:
        """`done` of `rounds` rounds are over; `entry` is the record's last line, without the ids of the cohort."""
        ...


class OnRound(Callback):
    """`watch=` as a callback: a function that is told of every round and cannot end the run."""

    def __init__(self, watch: Watcher) -> None:
        self.watch = watch

    def on_round(self, run: LiveRun, entry: Mapping[str, Any]) -> None:
        self.watch(len(run.history), run.experiment.rounds, entry)


class Callbacks(Callback):
    """Several as one. The first text is the reason; all of them hear the round, and those that began the end."""

    def __init__(self, parts: Sequence[Callback]) -> None:
        self.parts = parts
        self.begun: list[Callback] = []

    def on_start(self, run: LiveRun) -> None:
        for part in self.parts:
            part.on_start(run)
            self.begun.append(part)

    def on_round(self, run: LiveRun, entry: Mapping[str, Any]) -> str | None:
        said = [part.on_round(run, entry) for part in self.parts]
        return next((why for why in said if why), None)

    def on_end(self, run: LiveRun, status: str) -> None:
        with ExitStack() as ends:  # one that raises does not keep the others from their end
            for part in reversed(self.begun):
                ends.callback(part.on_end, run, status)


def checked(callbacks: Any, watch: Any = None) -> list[Callback]:
    """What was handed over, before anything is set up; a ConfigError says what is not a callback."""
    if watch is not None and not callable(watch):
        raise ConfigError(f"watch: must be a function of done, rounds and entry (got {watch!r}). {_INSTEAD}")
    given = list(callbacks) if isinstance(callbacks, Sequence) else [callbacks]
    wrong = [c for c in given if not isinstance(c, Callback)]
    if wrong:
        raise ConfigError(f"callbacks: {_shown(wrong[0])} is not an atoll.Callback. {_INSTEAD}")
    return [*given, *([] if watch is None else [OnRound(watch)])]


_INSTEAD = (
    "Derive from atoll.Callback, write on_round(run, entry), and give callbacks=[MyCallback()]. "
    "For a bar: progress=True."
)


def _shown(thing: Any) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"a {type(thing).__name__}"


def silent(done: int, rounds: int, entry: Mapping[str, Any]) -> None:
    """A watcher that does nothing."""
