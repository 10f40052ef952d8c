"""One server, many clients: the round of most of federated learning."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from atoll import tree
from atoll.algorithms.local import model_of
from atoll.core import Context, Model, Outcome, Play, Round, Traffic
from atoll.rounds.server_step import client_key, server_step
from atoll.tree import Tree


@dataclass(frozen=True)
class Central(Round):
    """One server broadcasts, every client of the cohort trains, the server applies the aggregate."""

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        chain, _ = ctx.chain.init(ctx.update_like)
        return {
            "server": ctx.algorithm.init(model, key),
            "chain": chain,
            "reducer": ctx.program.reducer.init(ctx.program.like),
        }

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        ids, participation = ctx.sample()
        sent, chain = self.broadcast(ctx, state, ids)
        trained = yield ctx.train(sent, chain, ids, client_key(key))
        step = server_step(ctx, **state, partial=trained.partial, rows=trained.rows, invited=len(ids), key=key)
        new = {"server": step.server, "chain": step.chain, "reducer": step.reducer}
        traffic = Traffic(_whole(len(ids) * ctx.upload_bytes), len(ids) * tree.nbytes(sent))
        outcome = Outcome(
            ids, participation, trained.examples, trained.columns, traffic, step.changed, step.diagnostics
        )
        return new, outcome

    def model(self, state: Tree) -> Model:
        return model_of(state["server"])

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        return ctx.algorithm.send(state["server"]), ctx.chain.client_view(state["chain"])


def _whole(bytes: float) -> int:
    return int(-(-bytes // 1))
