"""IFCA: clients choose among several models the one that fits them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atoll import rng
from atoll.core import Columns, Context, Count, Model, Outcome, Play, RoundTraits, Traffic
from atoll.rounds.clustered import CLUSTER, Clustered, bytes_of_models, choose, drawn_like, index_bytes
from atoll.rounds.server_stack import sent_rows, stacked_servers, step_groups
from atoll.rounds.server_step import client_key
from atoll.tree import Tree


@dataclass(frozen=True)
class Ifca(Clustered):
    """K models; a client trains the one that loses least on its own examples (Ghosh et al., 2020: IFCA).

    k_i = argmin_k F_i(w_k), then a step of each server on the updates of those who chose it; a model that nobody chose
    stays as it was. The first model is the run's own, the others are drawn like it. All clients, whatever they chose,
    train as one stack. `choose_steps` batches are read for the choice; without it, all that training reads.
    """

    choose_steps: Count | None = None

    def traits(self) -> RoundTraits:
        return replace(super().traits(), tells="which of the models fits it best" if self.clusters > 1 else None)

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        others = [drawn_like(model, rng.fold_name(key, "cluster", k)) for k in range(1, self.clusters)]
        return {**stacked_servers(ctx, [model, *others], key), CLUSTER: torch.full((ctx.population,), -1)}

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        ids, participation = ctx.sample()
        which = torch.zeros(len(ids), dtype=torch.int64)
        if self.clusters > 1 and len(ids):
            which = yield from choose(ctx, state, ids, key, self.choose_steps)
        trained = yield ctx.train(*sent_rows(ctx, state, which), ids, client_key(key), per_client=True)
        step = step_groups(ctx, state, trained, which, key)
        new, outcome = self.ended(ctx, state, step, trained, (ids, participation), which, {})
        return new, with_choice(outcome) if self.clusters > 1 else outcome

    def message_bytes(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[float, float]:
        """All models: the client chooses."""
        return bytes_of_models(ctx, state, self.clusters)


def with_choice(outcome: Outcome) -> Outcome:
    """With the number of the cluster that each client sends along."""
    extra, columns, traffic = index_bytes(), outcome.columns, outcome.traffic
    if traffic.up is not None:
        return replace(outcome, traffic=Traffic(traffic.up + len(outcome.ids) * extra, traffic.down))

    def longer() -> Columns:
        told = columns()
        return told if told.upload is None else told._replace(upload=told.upload + extra)

    return replace(outcome, columns=longer)
