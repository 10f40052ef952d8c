"""A round around another: what it does not say itself is the inner round's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from atoll.clock import Clock, Floats, Overhead
from atoll.core import Algorithm, Context, Model, Reducer, Round, Task
from atoll.tree import Tree


@dataclass(frozen=True, eq=False)
class RoundAround(Round):
    """Derive from it and write `run`: everything else is forwarded, so that no wrapper can lose a part unseen."""

    inner: Round

    @property
    def per_client(self) -> bool:
        return self.inner.per_client

    @property
    def sends_rows(self) -> bool:
        return self.inner.sends_rows

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        return self.inner.reducer(named)

    def for_task(self, task: Task, model: Model) -> Round:
        return replace(self, inner=self.inner.for_task(task, model))

    def check(self, algorithm: Algorithm) -> None:
        self.inner.check(algorithm)

    def in_virtual_time(self, clock: Clock, steps: Callable[[Tensor], Tensor]) -> Round | None:
        inner = self.inner.in_virtual_time(clock, steps)
        return None if inner is None else replace(self, inner=inner)

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

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        return self.inner.broadcast(ctx, state, ids)
