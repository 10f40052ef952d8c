"""Runs that advance together: each stops where it needs the engine, and what they ask for is done as one stack."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.algorithms.wrappers import Snapshot, Statistics
from atoll.core import Begun, Job, Model, Result, Task
from atoll.engines import Vector, measure, measure_each
from atoll.engines.evaluation import Columns
from atoll.engines.program import Decode
from atoll.runs.coroutine import Ask, Talk
from atoll.runs.job_signature import Marks, shapes
from atoll.tree import Tree


@dataclass(frozen=True, eq=False)
class Measure:
    """One model to be measured on some rows: the arguments of `engines.measure`."""

    task: Task
    decode: Decode
    columns: Tree
    model: Model
    rows: Tensor | None
    batch: int

    def alone(self) -> Columns:
        """Measured by itself."""
        return measure(self.task, self.decode, self.columns, self.model, self.rows, self.batch)

    def rising(self) -> Tensor:
        """The rows as numbers."""
        return torch.arange(len(self.columns["y"])) if self.rows is None else self.rows

    def mark(self) -> Hashable:
        """Equal for what can be measured as one stack."""
        return id(self.columns), shapes(self.model), self.batch


@dataclass
class Seat(Vector):
    """One run's engine at a meeting: a job that it is given is done beside the others' jobs."""

    inner: Vector = field(kw_only=True)
    ask: Ask = field(kw_only=True)

    def run(self, job: Job) -> Result:
        """Wait for the others, then for the result."""
        result: Result = self.ask(job)
        return result

    def begin(self, job: Job) -> Begun:
        """The same: others wait, too."""
        return Begun.of(self.run(job))

    def measure(
        self, task: Task, decode: Decode, columns: Tree, model: Model, rows: Tensor | None, batch: int
    ) -> Columns:
        """`engines.measure`, beside the others' models."""
        found: Columns = self.ask(Measure(task, decode, columns, model, rows, batch))
        return found


def seat(engine: Vector, ask: Ask) -> Seat:
    """A place at a meeting, with the settings of an engine."""
    return Seat(**{f.name: getattr(engine, f.name) for f in fields(engine) if f.init}, inner=engine, ask=ask)


@dataclass
class Meeting:
    """Does what several runs ask for, as few stacks as there are structures."""

    engine: Vector
    examples: int = 1  # of all models, measured at a time: about as many as are trained on at a time
    _marks: Marks = field(default_factory=Marks, init=False)
    _first: dict[Hashable, Job] = field(default_factory=dict, init=False)

    def hold(self, talks: Sequence[Talk]) -> None:
        """Until all have ended. Whoever ends, or fails, leaves; the others go on."""
        waiting: dict[Talk, Any] = {}
        try:
            for talk in talks:
                waiting[talk] = talk.next()
            while waiting := {t: asked for t, asked in waiting.items() if not t.over}:
                now = _those_behind(waiting)
                for talk, answer in zip(now, self._answers([waiting[t] for t in now]), strict=True):
                    waiting[talk] = talk.next(answer)
        except BaseException as e:  # a second Ctrl-C; nobody may be left waiting for an answer
            for talk in talks:
                talk.close(e)
            raise

    def _answers(self, asked: Sequence[Any]) -> list[Any]:
        """A result for each, or the exception that its group ended with."""
        answers: list[Any] = [None] * len(asked)
        for group in _groups([q.mark() if isinstance(q, Measure) else self._marks(q) for q in asked]):
            found = self._attempt([asked[i] for i in group])
            for i, answer in zip(group, found, strict=True):
                answers[i] = answer
        return answers

    def _attempt(self, group: list[Any]) -> Sequence[Any]:
        try:
            return self._measured(group) if isinstance(group[0], Measure) else self._run(group)
        except Exception as e:  # theirs, to be raised where they wait
            return [e] * len(group)

    def _run(self, jobs: list[Job]) -> list[Result]:
        """All with the templates of the first such job ever: an engine keeps what it made for those objects."""
        first = self._first.setdefault(self._marks(jobs[0]), jobs[0])
        same = {"algorithm": first.algorithm, "chain": first.chain, "reducer": first.reducer}
        return self.engine.run_many([replace(job, **same) for job in jobs])  # type: ignore[arg-type]

    def _measured(self, asked: list[Measure]) -> list[Columns]:
        """Side by side on a GPU, where small models leave it idle; one by one on a CPU, where nothing is gained."""
        if self.engine.device.type == "cpu" or len(asked) == 1:
            return [q.alone() for q in asked]
        models = max(1, self.examples // asked[0].batch)
        parts = (asked[i : i + models] for i in range(0, len(asked), models))
        return [found for part in parts for found in _side_by_side(part)]


def _those_behind(waiting: dict[Talk, Any]) -> list[Talk]:
    """Measuring comes first, then second passes, then training: so all meet again for their next round."""
    place = {talk: _place(asked) for talk, asked in waiting.items()}
    return [talk for talk in waiting if place[talk] == min(place.values())]


def _place(asked: Any) -> int:
    if isinstance(asked, Measure):
        return 0
    return 1 if isinstance(asked.algorithm, Snapshot | Statistics) else 2


def _groups(marks: Sequence[Hashable]) -> Iterator[list[int]]:
    """The positions of each mark."""
    found: dict[Hashable, list[int]] = {}
    for i, mark in enumerate(marks):
        found.setdefault(mark, []).append(i)
    return iter(found.values())


def _side_by_side(asked: Sequence[Measure]) -> list[Columns]:
    """Several models, each on its own rows, as one stack."""
    first, rows = asked[0], [q.rising() for q in asked]
    width = min(first.batch, max(map(len, rows)))
    steps = -(-max(map(len, rows)) // width)
    at = torch.arange(steps * width)
    plan = torch.stack([r[at.clamp(max=len(r) - 1)].reshape(steps, width) for r in rows])
    count = torch.stack([(len(r) - torch.arange(steps) * width).clamp(0, width) for r in rows])
    models = tree.map(lambda *xs: torch.stack(xs), *(q.model for q in asked))
    found, owner = measure_each(first.task, first.decode, first.columns, models, plan, count, stacked=True)
    return [{k: v[owner == c] for k, v in found.items()} for c in range(len(asked))]
