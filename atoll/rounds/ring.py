"""Ring weight transfer: every client has a model, and all models move on by one client in a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.algorithms import model_of
from atoll.clock import Clock
from atoll.core import OWN_MODELS, Algorithm, Context, Model, Outcome, Play, Reducer, Round, RoundTraits
from atoll.rounds.cyclic import one_update_at_a_time, refuse_common_state
from atoll.rounds.hand_over_clock import RingClocked
from atoll.rounds.server_stack import device_of, sent_rows, stacked_servers, step_alone
from atoll.rounds.server_step import client_key
from atoll.tree import Tree


@dataclass(frozen=True)
class Ring(Round):
    """As many models as clients: each is trained by one client, then by the next (ring weight transfer).

    Client i trains what client i - 1 had in the round before; all train as one stack. Those who do not come keep
    theirs: the ring is closed among those who do, by their numbers. After as many rounds as there are clients every
    model has been everywhere. The model that is measured is the mean of all; clients measure their own.
    """

    def traits(self) -> RoundTraits:
        return OWN_MODELS

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        return one_update_at_a_time(named, "ring")

    def check(self, algorithm: Algorithm) -> None:
        refuse_common_state(algorithm, "ring")

    def in_virtual_time(self, clock: Clock, steps: Callable[[Tensor], Tensor]) -> Round:
        return RingClocked.around(self, clock, steps)

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        return stacked_servers(ctx, [model] * ctx.population, key)

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        ids, participation = ctx.sample()
        trained = yield ctx.train(*self.broadcast(ctx, state, ids), ids, client_key(key), per_client=True)
        state = step_alone(ctx, state, trained, ids, rng.fold_name(key, "server"))
        traffic = ctx.traffic(len(ids), _one(ctx, state))
        outcome = Outcome(ids, participation, trained.examples, trained.columns, traffic, bool(trained.rows))
        return moved_on(state, ids), outcome

    def model(self, state: Tree) -> Model:
        """The mean of all."""
        return tree.map(_mean, model_of(state["server"]))  # type: ignore[no-any-return]

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        """What they have."""
        return sent_rows(ctx, state, ids)


def moved_on(state: Tree, ids: Tensor) -> Tree:
    """Each of these clients has what the one before it had, by their numbers."""
    if len(ids) < 2:
        return state
    here = torch.tensor(sorted(set(ids.tolist())), device=device_of(state))
    return tree.map(lambda x: x.index_copy(0, here, x[here.roll(1)]), state)  # type: ignore[no-any-return]


def _mean(x: Tensor) -> Tensor:
    return tree.cast_like((x if x.is_floating_point() else x.float()).mean(0), x)


def _one(ctx: Context, state: Tree) -> Tree:
    return tree.rows(sent_rows(ctx, state, torch.zeros(1, dtype=torch.int64))[0], 0)
