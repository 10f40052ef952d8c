"""A round around another: what it does not say itself is the inner round's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from atoll.clock import Clock, Floats, Overhead, Timeline
from atoll.core import Algorithm, Context, Model, Part, Reducer, Round, Task
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

    def facts(self, population: int) -> dict[str, Any]:
        return self.inner.facts(population)

    def in_virtual_time(self, clock: Clock, steps: Callable[[Tensor], Tensor]) -> Round | None:
        inner = self.inner.in_virtual_time(clock, steps)
        return None if inner is None else replace(self, inner=inner)

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

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        return self.inner.init(ctx, model, key)

    def begun(self, state: Tree, seconds_per_step: Callable[[], float]) -> Tree:
        return self.inner.begun(state, seconds_per_step)

    def overhead(self, ctx: Context, state: Tree, ids: Tensor) -> Overhead | None:
        return self.inner.overhead(ctx, state, ids)

    def message_bytes(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[float | Floats, float | Floats]:
        return self.inner.message_bytes(ctx, state, ids)

    def model(self, state: Tree) -> Model:
        return self.inner.model(state)

    def beside(self, state: Tree) -> dict[str, Model]:
        return self.inner.beside(state)

    def ensembles(self, state: Tree) -> dict[str, Model]:
        return self.inner.ensembles(state)

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        return self.inner.broadcast(ctx, state, ids)
