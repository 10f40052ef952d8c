"""A round around another: what it does not say itself is the inner round's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from atoll.clock import Clock, Floats, Overhead, Timeline
from atoll.core import Algorithm, Context, Model, Outcome, Part, Reducer, Round, Summation, Task, Transform
from atoll.tree import Tree

S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class RoundAround(Round):
    """Derive from it and write `run`: everything else is forwarded, so that no wrapper can lose a part unseen."""

    inner: Round

    @property
    def per_client(self) -> bool:
        return self.inner.per_client

    @property
    def has_server(self) -> bool:
        return self.inner.has_server

    @property
    def sends_rows(self) -> bool:
        return self.inner.sends_rows

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        return self.inner.reducer(named)

    @property
    def partial(self) -> bool:
        return self.inner.partial

    def for_task(self, task: Task, model: Model) -> Round:
        return replace(self, inner=self.inner.for_task(task, model))

    def check(self, algorithm: Algorithm) -> None:
        self.inner.check(algorithm)

    def check_population(self, population: int) -> None:
        self.inner.check_population(population)

    def tells(self) -> str | None:
        return self.inner.tells()

    def cautions(self) -> list[str]:
        return self.inner.cautions()

    def facts(self, population: int) -> dict[str, Any]:
        return self.inner.facts(population)

    def in_virtual_time(self, clock: Clock, steps: Callable[[Tensor], Tensor]) -> Round | None:
        inner = self.inner.in_virtual_time(clock, steps)
        return None if inner is None else replace(self, inner=inner)

    def parties(self, level: int, drawn: int | None) -> int | None:
        return self.inner.parties(level, drawn)

    @property
    def sums_differ(self) -> bool:
        return self.inner.sums_differ

    def summed_by(self, summation: Summation, level: int) -> Round | None:
        inner = self.inner.summed_by(summation, level)
        return None if inner is None else replace(self, inner=inner)

    def before_sums(self) -> tuple[Transform, ...]:
        return self.inner.before_sums()

    def check_untimed(self) -> None:
        self.inner.check_untimed()

    @property
    def selects_by_time(self) -> bool:
        return self.inner.selects_by_time

    @property
    def sums_per_round(self) -> int:
        return self.inner.sums_per_round

    def refuses(self, part: Part) -> str | None:
        return self.inner.refuses(part)

    def sampler(self, named: S) -> S:
        return self.inner.sampler(named)

    def most_at_once(self, asked: int) -> int:
        return self.inner.most_at_once(asked)

    def forecast(self, first: Timeline, pools: Callable[[int], Tensor], rounds: int) -> list[Timeline] | None:
        return self.inner.forecast(first, pools, rounds)

    def total_bytes(
        self, ctx: Context, state: Tree, first: Outcome, pools: Callable[[int], Tensor], rounds: int
    ) -> dict[str, int]:
        return self.inner.total_bytes(ctx, state, first, pools, rounds)

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        return self.inner.init(ctx, model, key)

    def begun(self, state: Tree, seconds_per_step: Callable[[], float]) -> Tree:
        return self.inner.begun(state, seconds_per_step)

    def overhead(self, ctx: Context, state: Tree, ids: Tensor) -> Overhead | None:
        return self.inner.overhead(ctx, state, ids)

    def message_bytes(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[float | Floats, float | Floats]:
        return self.inner.message_bytes(ctx, state, ids)

    def after(self, ctx: Context, state: Tree, ids: Tensor) -> Tree:
        return self.inner.after(ctx, state, ids)

    def timed(self, ctx: Context, state: Tree, key: Tensor) -> tuple[Timeline, Tree] | None:
        return self.inner.timed(ctx, state, key)

    def model(self, state: Tree) -> Model:
        return self.inner.model(state)

    def beside(self, state: Tree) -> dict[str, Model]:
        return self.inner.beside(state)

    def ensembles(self, state: Tree) -> dict[str, Model]:
        return self.inner.ensembles(state)

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        return self.inner.broadcast(ctx, state, ids)
