"""HypCluster: hypotheses that start from one, and part by what clients choose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from atoll import rng, tree
from atoll.algorithms import model_of
from atoll.core import Context, Count, Model, Play, RoundTraits, Whole
from atoll.rounds.clustered import CLUSTER, Clustered, bytes_of_models, choose, perturbed
from atoll.rounds.ifca import with_choice
from atoll.rounds.server_stack import sent_rows, stacked_servers, step_groups
from atoll.rounds.server_step import client_key
from atoll.tree import Tree


@dataclass(frozen=True)
class HypCluster(Clustered):
    """Hypothesis clusters: K hypotheses, each trained by the clients that it fits best (Mansour et al., 2020).

    It differs from IFCA in how hypotheses begin and in how they are chosen. `warm_up` rounds are FedAvg of one model
    by everybody; the hypotheses are that model, with noise of `scale` times the spread of every tensor on all but the
    first. A choice is made by a few batches (`choose_steps`), an estimate of the loss, anew by everybody who comes.
    With one cluster it is FedAvg.
    """

    warm_up: Whole = 1
    scale: Annotated[float, Field(gt=0)] = 0.1
    choose_steps: Count | None = 4

    def traits(self) -> RoundTraits:
        return replace(super().traits(), tells="which of the hypotheses fits it best" if self.clusters > 1 else None)

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        state = stacked_servers(ctx, [model] * self.clusters, key)
        state = self._parted(state, key) if self.warm_up == 0 else state
        return {**state, CLUSTER: torch.full((ctx.population,), -1)}

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        ids, participation = ctx.sample()
        warm = ctx.number < self.warm_up
        which = torch.zeros(len(ids), dtype=torch.int64)
        chosen = self.clusters > 1 and len(ids) > 0 and not warm
        if chosen:
            which = yield from choose(ctx, state, ids, key, self.choose_steps)
        trained = yield ctx.train(*sent_rows(ctx, state, which), ids, client_key(key), per_client=True)
        step = step_groups(ctx, state, trained, which, key)
        if warm and ctx.number + 1 == self.warm_up:
            step = step._replace(state=self._parted(step.state, key))
        new, outcome = self.ended(
            ctx, state, step, trained, (ids, participation), which, {"warm_up": torch.tensor(warm)}
        )
        return new, with_choice(outcome) if chosen else outcome

    def message_bytes(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[float, float]:
        """One model while all is one; then all of them: the client chooses."""
        return bytes_of_models(ctx, state, 1 if ctx.number < self.warm_up else self.clusters)

    def _parted(self, state: Tree, key: Tensor) -> Tree:
        """All hypotheses where the first one is, the others with noise."""
        first = tree.map(lambda x: x[:1].expand_as(x).clone(), state)
        model = model_of(tree.rows(first["server"], 0))
        others = [perturbed(model, self.scale, rng.fold_name(key, "cluster", k)) for k in range(1, self.clusters)]
        models = tree.map(lambda *xs: torch.stack(xs), model, *others)
        return {**first, "server": {**first["server"], **models}}
