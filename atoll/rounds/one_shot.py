"""One shot: clients train alone, and speak once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.algorithms import model_of
from atoll.clock import Clock
from atoll.core import OWN_MODELS, Algorithm, Columns, Context, Model, Outcome, Play, Reducer, Round, RoundTraits
from atoll.rounds.cyclic import one_update_at_a_time, refuse_common_state
from atoll.rounds.hand_over_clock import AloneClocked
from atoll.rounds.server_stack import device_of, sent_rows, stacked_servers, step_alone
from atoll.rounds.server_step import client_key
from atoll.tree import Tree

EXAMPLES = "examples"  # (N,) in the state: of those who have trained; 0: never


@dataclass(frozen=True)
class OneShot(Round):
    """Everybody trains alone; one exchange gives the mean of the models, and an ensemble (Guha et al., 2019).

    Every line measures what the exchange would give if it were made then: the mean of the models, weighted by
    examples, and beside it, as `ensemble`, the mean of their probabilities. Both have the same bytes: each client's
    model is sent once, which the record counts in the round in which a client first trains. One round is one-shot
    averaging: FedAvg's first round. It keeps a model for each client.
    """

    def traits(self) -> RoundTraits:
        return OWN_MODELS

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        return one_update_at_a_time(named, "one_shot")

    def check(self, algorithm: Algorithm) -> None:
        refuse_common_state(algorithm, "one_shot")

    def in_virtual_time(self, clock: Clock, steps: Callable[[Tensor], Tensor]) -> Round:
        return AloneClocked.around(self, clock, steps)

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        return {**stacked_servers(ctx, [model] * ctx.population, key), EXAMPLES: torch.zeros(ctx.population)}

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        ids, participation = ctx.sample()
        trained = yield ctx.train(*self.broadcast(ctx, state, ids), ids, client_key(key), per_client=True)
        servers = step_alone(ctx, state, trained, ids, rng.fold_name(key, "server"))
        order, before = trained.order.cpu(), state[EXAMPLES].cpu()
        examples = before.index_copy(0, ids[order], trained.examples.float()[order])
        first = before[ids] == 0
        sent, _ = sent_rows(ctx, state, torch.zeros(1, dtype=torch.int64))
        traffic = ctx.traffic(int(first.sum()), tree.rows(sent, 0))
        columns = _uploaded_once(trained.columns, first)
        outcome = Outcome(ids, participation, trained.examples, columns, traffic, bool(trained.rows))
        return {**servers, EXAMPLES: examples.to(state[EXAMPLES].device)}, outcome

    def total_bytes(
        self, ctx: Context, state: Tree, first: Outcome, pools: Callable[[int], Tensor], rounds: int
    ) -> dict[str, int]:
        """Every client that ever comes sends its model once."""
        seen = torch.zeros(ctx.population, dtype=torch.bool)
        for number in range(rounds):
            seen[pools(number)] = True
            if bool(seen.all()):
                break
        clients = max(1, len(first.ids))
        return {way: round(n * int(seen.sum()) / clients) for way, n in first.bytes().items()}

    def model(self, state: Tree) -> Model:
        """The mean of all who have trained."""
        weights = self._weights(state)
        shares = (weights / weights.sum()).to(device_of(state))

        def mean(x: Tensor) -> Tensor:
            return tree.cast_like(tree.weighted_sum(x if x.is_floating_point() else x.float(), shares), x)

        return tree.map(mean, model_of(state["server"]))  # type: ignore[no-any-return]

    def ensembles(self, state: Tree) -> dict[str, Model]:
        """All who have trained, each alike."""
        there = self._weights(state).nonzero()[:, 0].to(device_of(state))
        return {"ensemble": tree.rows(model_of(state["server"]), there)}

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        """What they have."""
        return sent_rows(ctx, state, ids)

    def _weights(self, state: Tree) -> Tensor:
        examples: Tensor = state[EXAMPLES]
        return examples if bool(examples.any()) else torch.ones_like(examples)


def _uploaded_once(columns: Callable[[], Columns], first: Tensor) -> Callable[[], Columns]:
    """Where bytes depend on the data: those of clients that train for the first time."""

    def once() -> Columns:
        told = columns()
        return told if told.upload is None else told._replace(upload=told.upload * first)

    return once
