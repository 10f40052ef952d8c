"""A round around another: what it does not say itself is the inner round's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from atoll.clock import Clock, Floats, Overhead, Timeline
from atoll.core import Algorithm, Context, Model, Outcome, Reducer, Round, RoundTraits, Summation, Task, Transform
from atoll.tree import Tree

S = TypeVar("S")


@dataclass(frozen=True, eq=False)
class RoundAround(Round):
    """Derive from it and write `run`: everything else is forwarded, so that no wrapper can lose a part unseen."""

    inner: Round

    def traits(self) -> RoundTraits:
        return self.inner.traits()

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        return self.inner.reducer(named)

    def for_task(self, task: Task, model: Model) -> Round:
        return replace(self, inner=self.inner.for_task(task, model))

    def check(self, algorithm: Algorithm) -> None:
        self.inner.check(algorithm)

    def check_population(self, population: int) -> None:
        self.inner.check_population(population)

    def check_cohort(self, clients: int) -> None:
        self.inner.check_cohort(clients)

    def facts(self, population: int) -> dict[str, Any]:
        return self.inner.facts(population)

    def in_virtual_time(self, clock: Clock, steps: Callable[[Tensor], Tensor]) -> Round | None:
        inner = self.inner.in_virtual_time(clock, steps)
        return None if inner is None else replace(self, inner=inner)

    def parties(self, level: int, drawn: int | None) -> int | None:
        return self.inner.parties(level, drawn)

    def summed_by(self, summation: Summation, level: int) -> Round | None:
        inner = self.inner.summed_by(summation, level)
        return None if inner is None else replace(self, inner=inner)

    def before_sums(self) -> tuple[Transform, ...]:
        return self.inner.before_sums()

    def check_untimed(self) -> None:
        self.inner.check_untimed()

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

    def lengths_vary(self, ctx: Context, state: Tree) -> bool:
        return self.inner.lengths_vary(ctx, state)

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
