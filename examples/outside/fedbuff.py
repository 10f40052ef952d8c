"""FedBuff: the server goes on as soon as a buffer is full; stale updates count less (Nguyen et al., 2022).

round = { name = "fedbuff:FedBuff", concurrency = 20 }; the buffer is cohort.size.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

from atoll import rng, tree
from atoll.core import Outcome, Round
from atoll.reducers import Mean
from atoll.rounds import client_key, server_state, server_step


@dataclass(frozen=True)
class StaleMean(Mean):
    """The mean with weights over sqrt(1 + staleness)."""

    def lift_scaled(self, updates, factors, info, key):
        weight = updates.weight / (1 + info.staleness).sqrt()
        return super().lift_scaled(updates._replace(weight=weight), factors, info, key)


@dataclass(frozen=True)
class FedBuff(Round):
    """`concurrency` clients train at a time; a round ends when as many have come back as the cohort has."""

    concurrency: Annotated[int, Field(ge=1)] = 8

    def reducer(self, named):
        return StaleMean()

    def init(self, ctx, model, key):
        state = server_state(ctx, model, key)
        ids, zeros = torch.arange(self.concurrency) % ctx.population, torch.zeros(self.concurrency)
        sent = tree.map(torch.clone, tree.stack(ctx.algorithm.send(state["server"]), self.concurrency))
        flight = {"id": ids, "version": zeros, "due": rng.uniform(key, (self.concurrency,)), "sent": sent}
        return {**state, "flight": flight, "version": torch.zeros(())}

    def run(self, ctx, state, key):
        new, how = ctx.sample()
        flight, version = state["flight"], state["version"]
        first = flight["due"].argsort()[: len(new)]  # whoever comes back first
        ids, view = flight["id"][first], tree.stack(ctx.chain.client_view(state["chain"]), len(first))
        sent, stale = tree.rows(flight["sent"], first), version - flight["version"][first]
        trained = yield ctx.train(sent, view, ids, client_key(key), per_client=True, staleness=stale)
        step = server_step(ctx, state, trained, key)
        now, wait = flight["due"][first], rng.uniform(rng.fold_name(key, "delay"), (len(first),))
        fresh = {"id": new[: len(first)], "version": (version + 1).expand(len(first)), "due": now + 0.5 + wait}
        fresh["sent"] = tree.map(torch.clone, tree.stack(ctx.algorithm.send(step.state["server"]), len(first)))
        flight = tree.map(lambda old, x: old.index_copy(0, first, x), flight, fresh)
        bytes_ = ctx.traffic(len(ids), ctx.algorithm.send(state["server"]))
        outcome = Outcome(ids, how, trained.examples, trained.columns, bytes_, step.changed, step.diagnostics)
        return {**step.state, "flight": flight, "version": version + 1}, outcome
