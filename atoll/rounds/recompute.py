"""BatchNorm's statistics of the new model, re-estimated on the cohort's data after every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from atoll import rng
from atoll.core import Algorithm, Chain, Context, Model, Play, Program, Round, Train
from atoll.errors import ConfigError
from atoll.reducers import Mean
from atoll.rounds.around import RoundAround
from atoll.tree import Tree


@dataclass(frozen=True, eq=False)
class Recompute(RoundAround):
    """A round around another: a second pass over the cohort, with a program that only gathers statistics."""

    statistics: Algorithm
    program: Program

    @classmethod
    def around(cls, inner: Round, statistics: Algorithm, buffers: Tree) -> Recompute:
        """`buffers` are those of the model."""
        if inner.traits().per_client:
            raise ConfigError(
                "task.batch_norm: 'recompute' estimates statistics of one server's model, and in this round "
                "every client has its own. Use 'average' or 'local', or round.name = 'central'."
            )
        return cls(inner, statistics, Program(statistics, Chain(), Mean(), {"buffers": buffers}))

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        state, outcome = yield from self.inner.run(ctx, state, key)
        if not outcome.changed or not len(outcome.ids):
            return state, outcome
        settings: Tree = {"algorithm": {}, "chain": {}}
        sent = self.statistics.send(state["server"])
        again = rng.fold_name(key, "statistics")
        more: dict[str, Any] = {"client_state": "none", "row_table": ctx.row_table}
        trained = yield Train(self.program, settings, sent, {}, outcome.ids, again, ctx.order, **more)
        total, _, _ = self.program.reducer.finish(trained.partial, {}, again)
        if trained.rows == 0 and not bool(total.weight > 0):
            return state, outcome
        return {
            **state,
            "server": self.statistics.apply(state["server"], total, rng.fold_name(again, "apply")),
        }, outcome

    def beside(self, state: Tree) -> dict[str, Model]:
        return self.inner.beside(state)
