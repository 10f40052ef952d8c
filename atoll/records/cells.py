"""The values: a suite has cells, a cell has one run per seed, and the trials that chose its settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from atoll.records.status import FINISHED

Tuning = Literal["validation", "paper", "none"]
When = Literal["last", "best"]


@dataclass(frozen=True)
class Trace:
    """One run: the suite's metric on the test data, round by round, and what it cost until then."""

    seed: int
    digest: str  # of the complete experiment
    rounds: tuple[int, ...]  # those that were evaluated
    values: tuple[float, ...]  # the metric there; NaN where it was not finite
    bytes: tuple[float, ...]  # up and down, of all clients, from the beginning until then
    seconds: tuple[float, ...]  # of drawing, training, server and record (not evaluation), until then
    together: int = 1  # runs that shared these seconds as one stack
    clients: Mapping[str, float] = field(default_factory=dict)  # the metric's spread over clients at the end
    validation: float | None = None  # the metric on examples kept from training, at the end
    partition: str = ""  # its digest: runs of one seed are paired if it is the same
    status: str = FINISHED
    privacy: Mapping[str, Any] = field(default_factory=dict)  # what it holds, as in run.json but shorter
    up: tuple[float, ...] = ()  # those of the bytes that clients sent; () where nobody counted them apart
    times: Mapping[str, float] = field(default_factory=dict)  # virtual seconds of a round on average: clock.RoundParts
    security: Mapping[str, Any] = field(default_factory=dict)  # its level, and what a protocol took (security_level.py)
    attack: Mapping[str, Any] = field(default_factory=dict)  # who attacked, with which success (attack_outcome.py)
    kept: int | None = None  # the round that was best by the metric of [stop]; None where the run has no such table

    @property
    def last(self) -> float:
        """The metric at the end."""
        return self.values[-1] if self.values else math.nan

    def best(self, higher: bool) -> float:
        """The metric in its best round. Chosen on the test data, so it flatters."""
        finite = [v for v in self.values if math.isfinite(v)]
        return (max if higher else min)(finite, default=math.nan)

    def at(self, when: When, higher: bool) -> float:
        """One of the two."""
        return self.last if when == "last" else self.best(higher)


@dataclass(frozen=True)
class Trial:
    """One setting that was tried, and what came of it: `score` decided, a mean over its runs."""

    settings: Mapping[str, Any]  # {"algorithm.mu": 0.01}
    runs: tuple[Trace, ...]
    score: float  # of validation, or (the paper's way) of the test data


@dataclass(frozen=True)
class Cell:
    """One entry of the table: where it stands, its runs, and how its settings were found."""

    block: str  # the part of the suite that it belongs to
    path: Mapping[str, str]  # {"data": "fmnist", "partition": "dirichlet(0.5)", "algorithm": "fedavg"}, in this order
    runs: tuple[Trace, ...] = ()  # with the chosen settings, one per seed
    settings: Mapping[str, Any] = field(default_factory=dict)  # the chosen ones
    trials: tuple[Trial, ...] = ()  # all that were tried, the chosen one among them
    failed: Mapping[str, str] = field(default_factory=dict)  # a seed or trial, and why
    skew: Mapping[str, float] = field(default_factory=dict)  # how unlike the clients are, at the first seed
    quirk: str | None = None  # a published mistake that this cell repeats on purpose, in words
    wanted: int = 0  # seeds that the suite asks for
    stands_for: str | None = None  # the published cell that it is compared with, where its name is another
    diverged: int = 0  # seeds whose numbers stopped being numbers: no runs, and worse than any
    untuned: str | None = None  # why it was tried with fewer settings than others, in words

    @property
    def name(self) -> str:
        """Its place as one word: fmnist/dirichlet(0.5)/fedavg."""
        return "/".join(self.path.values())

    @property
    def row(self) -> tuple[str, ...]:
        """Its place without the method, which is the last axis: cells of one row are compared with each other."""
        return tuple(self.path.values())[:-1]

    @property
    def method(self) -> str:
        """What is compared: its value on the last axis."""
        return tuple(self.path.values())[-1]

    @property
    def oddity(self) -> str:
        """Where its quirk is: the values of its place that stand for another one."""
        right = self.stands_for.split("/") if self.stands_for else []
        odd = [v for v, r in zip(self.path.values(), right, strict=False) if v != r]
        return ", ".join(odd) or self.method

    def by_seed(self, when: When, higher: bool) -> dict[int, float]:
        """The metric of every seed."""
        return {run.seed: run.at(when, higher) for run in self.runs}


@dataclass(frozen=True)
class Results:
    """What came of a suite."""

    suite: str
    title: str
    size: str  # "full", "smoke"
    metric: str
    higher: bool  # is more of the metric better?
    axes: tuple[str, ...]  # the last one holds what is compared
    cells: tuple[Cell, ...]
    about: str = ""
    tuning: Tuning = "none"
    scale: float = 1.0  # what a value is multiplied with to be shown: 100 for per cent
    reference: str | None = None  # a published table of `atoll/records/reference`
    missing: Mapping[str, str] = field(default_factory=dict)  # published cells that cannot be had: a pattern, and why
    made: Mapping[str, Any] = field(default_factory=dict)  # command, date, versions, machine
    titles: Mapping[str, str] = field(default_factory=dict)  # of blocks that have one
    references: Mapping[str, str] = field(default_factory=dict)  # of blocks that have their own; "" for none
    baseline: Mapping[str, str] = field(default_factory=dict)  # what bytes are compared with: values of some axes
    reach: float | None = None  # bytes until this share of what the baseline has at the end; None: until `Trace.kept`
    worst_over: str | None = None  # the axis whose worst value counts: the worst attack for every defence
    deviates: str = ""  # how a smaller size differs from the published settings, where it is judged all the same

    @property
    def whens(self) -> tuple[When, ...]:
        """Where the metric is read. A clock only goes on: its best round is the first one, which says nothing."""
        return ("last",) if self.metric.startswith("clock.") else ("last", "best")

    def blocks(self) -> tuple[str, ...]:
        """The blocks that have cells, in the suite's order."""
        return tuple(dict.fromkeys(cell.block for cell in self.cells))

    def rows(self, block: str) -> dict[tuple[str, ...], dict[str, Cell]]:
        """The cells of a block by row, then by method."""
        found: dict[tuple[str, ...], dict[str, Cell]] = {}
        for cell in self.cells:
            if cell.block == block:
                found.setdefault(cell.row, {})[cell.method] = cell
        return found
