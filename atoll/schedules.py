"""Schedules: hyperparameters that change over rounds, such as the learning rate.

Each is a pure function of the round and of what was measured before it.

Because the past is an argument, a resumed run needs no schedule state: the record is the state.

>>> Cosine(start=0.1, end=0.0, over=10).value(5, [])
0.05
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

History = Sequence[Mapping[str, Any]]  # one entry per round so far, as in record.jsonl
Rounds = Annotated[int, Field(ge=1)]
Number = Annotated[float, Field(ge=0)]


class Schedule(ABC):
    """A number for every round (the first is round 0)."""

    @abstractmethod
    def value(self, round: int, history: History) -> float:
        """The setting in this round, given the record of the rounds before it."""

    def finished(self, history: History) -> bool:
        """Should training stop?"""
        return False

    def metrics(self) -> tuple[str, ...]:
        """What it waits for in the record: a run that does not measure it is refused."""
        return ()

    def horizon(self) -> int | None:
        """The round at which it has reached its end, if it has one: a run that ends there can have no more rounds."""
        return None

    def directions(self) -> Mapping[str, Literal["lower", "higher"]]:
        """Which way it takes a metric to get better, where it says: refused if the metric gets better otherwise."""
        return {}


@dataclass(frozen=True)
class Constant(Schedule):
    """The same number in every round."""

    start: Number

    def value(self, round: int, history: History) -> float:
        return self.start


@dataclass(frozen=True)
class Step(Schedule):
    """Times `factor` after every `every` rounds."""

    start: Number
    every: Rounds
    factor: Number = 0.1

    def value(self, round: int, history: History) -> float:
        return self.start * self.factor ** (round // self.every)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from `start` to `end` over `over` rounds, then `end`."""

    start: Number
    over: Rounds
    end: Number = 0.0

    def value(self, round: int, history: History) -> float:
        part = min(round / self.over, 1.0)
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * part)) / 2

    def horizon(self) -> int | None:
        return self.over


@dataclass(frozen=True)
class Warmup(Schedule):
    """Up in equal steps to `start` over `over` rounds, then constant, or a cosine to `end` at round `until`."""

    start: Number
    over: Rounds
    until: Annotated[int, Field(ge=1)] | None = None
    end: Number = 0.0

    def value(self, round: int, history: History) -> float:
        if round < self.over:
            return self.start * (round + 1) / self.over
        if self.until is None or self.until <= self.over:
            return self.start
        return Cosine(self.start, self.until - self.over, self.end).value(round - self.over, history)

    def horizon(self) -> int | None:
        return self.until


@dataclass(frozen=True)
class Plateau(Schedule):
    """Times `factor` when `metric` has not improved for `patience` evaluations; stop at reduction number `stop`.

    OARF's rule: factor 0.1, and training ends when the rate would be reduced the fourth time. `stop = 0`: never.
    """

    start: Number
    factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    patience: Rounds = 10
    metric: str = "loss"
    better: Literal["lower", "higher"] = "lower"
    threshold: Number = 1e-4
    stop: Annotated[int, Field(ge=0)] = 4

    def value(self, round: int, history: History) -> float:
        return self.start * self.factor ** self.reductions(history)

    def finished(self, history: History) -> bool:
        return self.stop > 0 and self.reductions(history) >= self.stop

    def metrics(self) -> tuple[str, ...]:
        return (self.metric,)

    def directions(self) -> Mapping[str, Literal["lower", "higher"]]:
        return {self.metric: self.better}

    def reductions(self, history: History) -> int:
        """How often the rate has been reduced so far (torch's ReduceLROnPlateau, relative threshold)."""
        best, bad, count = math.inf, 0, 0
        for entry in history:
            if self.metric not in entry:
                continue
            measured = math.nan if entry[self.metric] is None else entry[self.metric]  # null: never an improvement
            value = measured if self.better == "lower" else -measured
            if value < best - self.threshold * abs(best) if math.isfinite(best) else math.isfinite(value):
                best, bad = value, 0
            else:
                bad += 1
            if bad > self.patience:
                count, bad = count + 1, 0
        return count


@dataclass(frozen=True)
class Follow(Schedule):
    """Up by `change` when `metric` got worse, down when it improved `patience` evaluations in a row; 0 to `most`.

    For mu, at `patience = 1`: pfl-research's AdaFedProx, which looks at the loss of held-out data and takes the first
    measurement for an improvement. With more patience a reduction begins the count anew; pfl-research goes on with
    every further improvement. Nothing of the clients is in it, so it costs no privacy, unlike the training loss that
    the algorithm `adafedprox` goes by.
    """

    start: Number = 0.0
    change: Annotated[float, Field(gt=0)] = 0.1
    patience: Rounds = 1
    most: Number = 1.0
    metric: str = "loss"
    better: Literal["lower", "higher"] = "lower"

    def value(self, round: int, history: History) -> float:
        last, row, now = math.inf, 0, self.start
        for entry in history:
            if self.metric not in entry:
                continue
            measured = math.inf if entry[self.metric] is None else entry[self.metric]  # null: as bad as can be
            value = measured if self.better == "lower" or measured == math.inf else -measured
            if value < last:
                row += 1
                if row == self.patience:
                    now, row = max(now - self.change, 0.0), 0
            else:
                row = 0
                now = min(now + self.change, self.most) if value > last else now
            last = value
        return now

    def metrics(self) -> tuple[str, ...]:
        return (self.metric,)

    def directions(self) -> Mapping[str, Literal["lower", "higher"]]:
        return {self.metric: self.better}


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": Constant,
    "step": Step,
    "cosine": Cosine,
    "warmup": Warmup,
    "plateau": Plateau,
    "follow": Follow,
}
