"""A round in which the server trains, too: what it learns on its own data stands beside the clients' updates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Context, Play, Program, Round
from atoll.errors import ConfigError
from atoll.reducers import Collect
from atoll.rounds.around import RoundAround
from atoll.tree import Tree


@dataclass(frozen=True, eq=False)
class WithRoot(RoundAround):
    """A round around another: one more `Train` of the client that holds the server's rows, before the clients'.

    Its update goes through the same transforms as theirs, and into the reducer's state under "root".
    """

    client: int  # who stands for the server

    @classmethod
    def around(cls, inner: Round, client: int) -> WithRoot:
        """A ConfigError where there is no server."""
        if not inner.traits().has_server:
            raise ConfigError(
                "server.root: gives a server data of its own, and in this round there is none. "
                "Use round.name = 'central', or leave it out."
            )
        if (why := inner.traits().refuses.get("server.root")) is not None:
            raise ConfigError(f"server.root: {why}")
        return cls(inner, client)

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        ids = torch.tensor([self.client])
        sent, chain = self.inner.broadcast(ctx, state, ids)
        own = rng.fold_name(key, "root")
        request = ctx.train(sent, chain, ids, own, per_client=self.inner.traits().sends_rows)
        trained = yield replace(request, program=_collecting(ctx.program))
        stack = trained.partial
        root = tree.zeros_like(ctx.program.like)
        if len(stack):  # copied, since engines use their memory again
            root = tree.map(lambda x: x[0].clone(), stack.updates.value)
        known = {**state, "reducer": {**state["reducer"], "root": root}}
        state, outcome = yield from self.inner.run(ctx, known, key)
        return state, outcome


@lru_cache(maxsize=8)
def _collecting(program: Program) -> Program:
    """The same program, whose updates are kept as they are; one object for all rounds."""
    return replace(program, reducer=Collect())
