"""Cyclic weight transfer: the model goes from client to client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.clock import Clock
from atoll.core import OWN_MODELS, Algorithm, Context, Count, Model, Play, Reducer, Round, RoundTraits
from atoll.errors import ConfigError
from atoll.reducers import Collect, Mean
from atoll.rounds.algorithm_needs import OTHERS, check_needs
from atoll.rounds.hand_over_clock import CycleClocked
from atoll.rounds.server_stack import device_of, joined_outcome, sent_rows, step_alone
from atoll.rounds.server_step import client_key, server_state
from atoll.tree import Tree


@dataclass(frozen=True)
class CyclicTransfer(Round):
    """One client after the other trains what the one before it had (Chang et al., 2018: cyclic weight transfer).

    A round is one cycle over the cohort, by nature one training after the other. With `rings` > 1 so many copies
    go round at once, each among its own share of the cohort, all as one stack; at the end of the round they are
    averaged, each ring weighted by its examples. With a ring for every client that is FedAvg.
    """

    rings: Count = 1
    order: Literal["fixed", "shuffled"] = "fixed"  # by number, or drawn anew in every round

    def traits(self) -> RoundTraits:
        return OWN_MODELS

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        return one_update_at_a_time(named, "cyclic")

    def check(self, algorithm: Algorithm) -> None:
        refuse_common_state(algorithm, "cyclic")

    def in_virtual_time(self, clock: Clock, steps: Callable[[Tensor], Tensor]) -> Round:
        return CycleClocked.around(self, clock, steps)

    def queue(self, asked: Tensor, key: Tensor) -> tuple[Tensor, int]:
        """Who comes after whom, row by row, and how many are in a row: one of each ring."""
        ids = asked.sort().values if self.order == "fixed" else _shuffled(asked, rng.fold_name(key, "order"))
        return ids, max(1, min(self.rings, len(ids)))

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        return server_state(ctx, model, key)

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        asked, participation = ctx.sample()
        ids, rings = self.queue(asked, key)
        row = {**state, "reducer": {}}
        copies = tree.map(lambda x: x.expand(rings, *x.shape).clone(), row)
        parts, seen = [], torch.zeros(rings)
        for hop in range(max(1, -(-len(ids) // rings))):
            here = ids[hop * rings : (hop + 1) * rings]
            which, own = torch.arange(len(here)), client_key(key if hop == 0 else rng.fold_name(key, "hop", hop))
            trained = yield ctx.train(*sent_rows(ctx, copies, which), here, own, per_client=True)
            copies = step_alone(ctx, copies, trained, which, rng.fold_name(key, "step", hop))
            seen = seen.index_add(0, which, trained.examples.float() * trained.finite.cpu())
            parts.append(trained)
        new = {**_averaged(copies, seen), "reducer": state["reducer"]} if bool(seen.any()) else state
        sent, _ = sent_rows(ctx, copies, torch.zeros(1, dtype=torch.int64))
        traffic = ctx.traffic(len(ids), tree.rows(sent, 0))
        return new, joined_outcome(parts, ids, participation, traffic, bool(seen.any()))

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        """The model, once for each."""
        alone = tree.map(lambda x: x[None], {**state, "reducer": {}})
        return sent_rows(ctx, alone, torch.zeros(len(ids), dtype=torch.int64))


def one_update_at_a_time(named: Reducer[Any], name: str) -> Reducer[Any]:
    """The reducer of a round that never holds two updates; a ConfigError for one that would have nothing to do."""
    if not isinstance(named, Mean):
        raise ConfigError(
            f"reducer.name: in a {name} round no two updates come together, so {type(named).__name__} would not be "
            "used. Leave reducer out, or use round.name = 'central'."
        )
    return Collect()


def refuse_common_state(algorithm: Algorithm, name: str) -> None:
    """A ConfigError for an algorithm that needs a server, or all data in one place."""
    there_is_none = f"and in a {name} round there is none. Use round.name = 'central', {OTHERS}."
    check_needs(algorithm, there_is_none, there_is_none)


def _shuffled(ids: Tensor, key: Tensor) -> Tensor:
    return ids[torch.argsort(rng.uniform(key, (len(ids),)), stable=True)]


def _averaged(copies: Tree, seen: Tensor) -> Tree:
    """Of all rings that saw somebody; one ring stays as it is."""
    if len(seen) == 1:
        return tree.map(lambda x: x[0], copies)  # type: ignore[no-any-return]
    shares = (seen / seen.sum()).to(device_of(copies))

    def mean(x: Tensor) -> Tensor:
        return tree.cast_like(tree.weighted_sum(x if x.is_floating_point() else x.float(), shares), x)

    return tree.map(mean, copies)  # type: ignore[no-any-return]
