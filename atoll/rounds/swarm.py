"""Swarm learning: no fixed server; in every round another client is elected to merge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from atoll import rng
from atoll.core import Context, Count, Model, Outcome, Play, Round, Traffic
from atoll.errors import ConfigError
from atoll.rounds.server_step import client_key, server_state, server_step
from atoll.tree import Tree
from atoll.wire import wire_bytes


@dataclass(frozen=True)
class Swarm(Round):
    """All train; an elected leader merges and sends the model back (Warnat-Herresthal et al., 2021).

    The sums are those of one server, so the model is FedAvg's, bit for bit. What differs is who holds the updates,
    which is in the record, and the bytes: the leader sends itself nothing. It is elected among those who come: the
    next by number ("rotate"), or any ("random"). With fewer than `min_peers` nothing is merged. Leaders are trusted as
    a server is, one after the other; their ledger (a blockchain) is not simulated.
    """

    election: Literal["rotate", "random"] = "rotate"
    min_peers: Count = 1

    def check_population(self, population: int) -> None:
        if self.min_peers > population:
            raise ConfigError(
                f"round.min_peers: {self.min_peers} are more than the {population} clients, so nothing would ever be "
                f"merged. Use at most {population}."
            )

    def check_cohort(self, clients: int) -> None:
        if self.min_peers > clients:
            raise ConfigError(
                f"round.min_peers: {self.min_peers} are more than the {clients} clients of a cohort, so nothing would "
                f"ever be merged. Use at most {clients}, or larger cohorts."
            )

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        return {**server_state(ctx, model, key), "leader": torch.tensor(-1)}

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        ids, participation = ctx.sample()
        enough = len(ids) >= self.min_peers
        ids = ids if enough else ids[:0]
        sent, chain = self.broadcast(ctx, state, ids)
        trained = yield ctx.train(sent, chain, ids, client_key(key))
        step = server_step(ctx, state, trained, key)
        leader = self._elected(ids, int(state["leader"]), rng.fold_name(key, "leader"))
        said = {**step.diagnostics, "swarm": {"leader": torch.tensor(leader), "peers": torch.tensor(len(ids))}}
        traffic = self._traffic(ctx, sent, len(ids))
        outcome = Outcome(ids, participation, trained.examples, trained.columns, traffic, step.changed, said)
        return {**state, **step.state, "leader": torch.full_like(state["leader"], leader)}, outcome

    def _elected(self, ids: Tensor, last: int, key: Tensor) -> int:
        """Nobody's turn is lost where nobody comes."""
        if not len(ids):
            return last
        peers = ids.sort().values
        if self.election == "random":
            return int(peers[int(rng.uniform(key, (1,)) * len(peers))])
        after = peers[peers > last]
        return int(after[0] if len(after) else peers[0])

    def _traffic(self, ctx: Context, sent: Tree, peers: int) -> Traffic:
        """All but the leader send it their updates, and are sent the model."""
        others = max(0, peers - 1)
        up = None if ctx.upload_bytes is None else others * ctx.upload_bytes
        return Traffic(up, others * wire_bytes(sent))
