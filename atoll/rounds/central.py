"""One server, many clients: the round of most of federated learning."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from atoll.core import Context, Model, Outcome, Play, Round
from atoll.rounds.server_step import client_key, server_state, server_step
from atoll.tree import Tree


@dataclass(frozen=True)
class Central(Round):
    """One server broadcasts, every client of the cohort trains, the server applies the aggregate."""

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        return server_state(ctx, model, key)

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        ids, participation = ctx.sample()
        sent, chain = self.broadcast(ctx, state, ids)
        trained = yield ctx.train(sent, chain, ids, client_key(key))
        step = server_step(ctx, state, trained, key)
        columns = trained.examples, trained.columns, ctx.traffic(len(ids), sent)
        return step.state, Outcome(ids, participation, *columns, step.changed, step.diagnostics)
