"""A round of clients that differ in kind: each is told its group, and is sent what that group holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll import rng, tree
from atoll.clock import Floats
from atoll.core import (
    Algorithm,
    Chain,
    Context,
    Model,
    Outcome,
    Part,
    Play,
    Reducer,
    Round,
    RoundTraits,
    Spec,
    Traffic,
    Train,
    Transform,
    held_part,
    resolve,
    transform_name,
)
from atoll.errors import ConfigError, SpecError
from atoll.reducers import HeldMean, Mean
from atoll.rounds.around import RoundAround
from atoll.rounds.foretold_bytes import foretold_bytes
from atoll.tree import Tree
from atoll.wire import wire_bytes

_REFUSED: dict[Part, str] = {
    "server.root": "gives the server an update to compare those of clients with, and here clients differ in kind while "
    "the server is of none. Use reducer.name = 'mean', or 'median'.",
}


@dataclass(frozen=True, eq=False)
class SentByGroup(RoundAround):
    """A round around another, whose requests it sends on with a row for each client: the same model, its own group.

    Where groups hold parts of the model, only these travel, and every number is averaged over those who hold it.
    """

    group: Tensor  # (N,) of each client
    held: tuple[Model, ...] = ()  # of each group; () where all hold everything

    @classmethod
    def around(
        cls, inner: Round, algorithm: Algorithm, model: Model, chain: Chain, population: int, seed: int
    ) -> Round:
        """The round itself where clients are of one kind; a ConfigError without a server, or if parts cannot travel."""
        groups, name = algorithm.traits().groups, type(algorithm).__name__
        if groups is None:
            return inner
        if inner.traits().per_client:
            raise ConfigError(
                f"round.name: {name} averages clients of different kinds on a server, and in this round there is none. "
                "Use round.name = 'central'."
            )
        held = [groups.held(model, g) for g in range(len(groups.shares))]
        parts = tuple(part for part in held if part is not None)
        if parts:
            _check_messages(chain, name)
        return cls(inner, group_of_clients(groups.shares, population, rng.key(seed, "groups")), parts)

    def traits(self) -> RoundTraits:
        inner = self.inner.traits()
        return replace(inner, sends_rows=True, refuses={**inner.refuses, **_REFUSED})

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        inner = self.inner.reducer(named)
        if not self.held:
            return inner
        if not isinstance(inner, Mean):
            raise ConfigError(
                f"reducer.name: clients hold different parts of the model, and {type(inner).__name__} compares whole "
                "updates. Leave reducer out."
            )
        return HeldMean(self.group, tuple({"delta": m["params"], "buffers": m["buffers"]} for m in self.held))

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        play = self.inner.run(ctx, state, key)
        request = next(play)
        while True:
            if isinstance(request, Train) and request.program is ctx.program:
                request = self._for_groups(request)
            answer = yield request
            try:
                request = play.send(answer)
            except StopIteration as end:
                new, outcome = end.value
                break
        if not self.held or not len(outcome.ids):
            return new, outcome
        down, up = self.message_bytes(ctx, state, outcome.ids)
        traffic = Traffic(int(np.sum(up)), int(np.sum(down)), outcome.traffic.wasted)
        return new, replace(outcome, traffic=traffic)

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        return self._rows(*self.inner.broadcast(ctx, state, ids), ids)

    def message_bytes(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[float | Floats, float | Floats]:
        if not self.held:
            return self.inner.message_bytes(ctx, state, ids)
        sent, _ = self.inner.broadcast(ctx, state, ids)
        bytes_of_groups = [_bytes(sent, ctx.update_like, part) for part in self.held]
        group = self.group[ids].numpy()
        down, up = np.array(bytes_of_groups, dtype=np.float64).T
        return down[group], up[group]

    def total_bytes(
        self, ctx: Context, state: Tree, first: Outcome, pools: Callable[[int], Tensor], rounds: int
    ) -> dict[str, int]:
        if not self.held:
            return self.inner.total_bytes(ctx, state, first, pools, rounds)
        return foretold_bytes(self, ctx, state, pools, rounds)

    def lengths_vary(self, ctx: Context, state: Tree) -> bool:
        return not self.held and self.inner.lengths_vary(ctx, state)

    def _for_groups(self, request: Train) -> Train:
        sent, state = self._rows(request.sent, request.state, request.ids)
        return replace(request, sent=sent, state=state, per_client=True)

    def _rows(self, sent: Tree, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        """The same for every client, without copies, but for its group."""
        n, group = len(ids), self.group[ids].to(sent["group"])
        rows = tree.map(lambda x: x.expand(n, *x.shape), {**sent, "group": sent["group"]})
        seen = tree.map(lambda x: x.expand(n, *x.shape), state) if tree.leaves(state) else state
        return {**rows, "group": group}, seen


def group_of_clients(shares: tuple[float, ...], population: int, key: Tensor) -> Tensor:
    """(N,) the group of each client: as near to these shares as whole clients can be, in an order that the key draws.

    >>> group_of_clients((0.5, 0.25, 0.25), 8, rng.key(0)).bincount().tolist()
    [4, 2, 2]
    """
    order = torch.argsort(rng.uniform(key, (population,)), stable=True)
    ends = (torch.tensor(shares, dtype=torch.float64).cumsum(0) * population).round().long()
    place = torch.arange(population)
    rank = torch.searchsorted(ends[:-1].contiguous(), place, right=True)
    return torch.zeros(population, dtype=torch.int64).index_copy(0, order, rank)


def _bytes(sent: Tree, update: Tree, held: Model) -> tuple[int, int]:
    """Of the message to a client of a group, and of the one from it."""
    model = held_part({k: sent[k] for k in ("params", "buffers")}, held)
    parts = {"delta": held["params"], "buffers": held["buffers"]}
    value = held_part(update, parts)
    return wire_bytes({**sent, **model}), wire_bytes({"weight": torch.ones(()), "value": value})


def _check_messages(chain: Chain, name: str) -> None:
    """Refuse what makes a message of a whole update, or puts noise where a client holds nothing."""
    for i, transform in enumerate(chain.transforms):
        if not _leaves_parts(transform):
            raise ConfigError(
                f"transform.{i}: {transform_name(transform)} works on whole updates, and with {name} clients send "
                "parts of different sizes, each number averaged over those who hold it. Leave it out; clip_l2 may stay."
            )


def _leaves_parts(transform: Transform) -> bool:
    try:
        bound, _ = resolve(transform, 0, []).bind(Spec(additive=False))
    except SpecError:  # it needs a sum
        return False
    quiet = type(bound).client is Transform.client or bound.keeps_zeros
    return quiet and type(bound).layout is Transform.layout and not bound.mechanisms()
