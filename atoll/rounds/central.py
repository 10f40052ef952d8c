"""One server, many clients: the round of most of federated learning."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from atoll import tree
from atoll.core import Context, Model, Outcome, Play, Round, Traffic
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
        traffic = Traffic(math.ceil(len(ids) * ctx.upload_bytes), len(ids) * tree.nbytes(sent))
        columns = trained.examples, trained.columns
        return step.state, Outcome(ids, participation, *columns, traffic, step.changed, step.diagnostics)
