"""A round whose sum is computed by secure aggregation, around one that knows its cohort before anything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.clock import Overhead
from atoll.core import Context, Model, Play, Reducer, Round, RoundTraits, Summation, Traffic
from atoll.errors import ConfigError
from atoll.reducers import SECURE
from atoll.rounds.around import RoundAround
from atoll.tree import Tree
from atoll.wire import wire_bytes


@dataclass(frozen=True, eq=False)
class Secured(RoundAround):
    """A round around another. The inner round sees only those whose vectors will be in the sum.

    Whoever is lost before leaves no trace: what it keeps between rounds is as it was. Bytes of the protocol take the
    place of the update's. A round that knows its cohorts only on the way makes its sums itself (`Round.summed_by`).
    """

    summation: Summation

    @classmethod
    def around(cls, inner: Round, summation: Summation) -> Secured:
        """A ConfigError where there is no server that could sum."""
        if not inner.traits().has_server:
            raise ConfigError(
                "secure: lets a server learn a sum and nothing else, and in this round there is no server that sums "
                "all of them. "
                "Leave [secure] out, or use round.name = 'central'."
            )
        return cls(inner, summation)

    def traits(self) -> RoundTraits:
        inner = self.inner.traits()
        return replace(inner, cautions=(*inner.cautions, *self.summation.cautions()))

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        inner = self.inner.reducer(named)
        made = self.summation.reducer(inner)
        if made is not inner and not inner.spec().additive and named.spec().additive:
            raise ConfigError(
                "secure: a protocol gives the sum of whole updates, and in this round the server works on every "
                "client's own: it averages parts of models, or matches their units. Leave [secure] out."
            )
        return made

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        return {**self.inner.init(ctx, model, key), **self.summation.init(ctx.program.like)}

    def begun(self, state: Tree, seconds_per_step: Callable[[], float]) -> Tree:
        inner = self.inner.begun(tree.without(state, (SECURE,)), seconds_per_step)
        return {**inner, **self.summation.begun(state)}

    def overhead(self, ctx: Context, state: Tree, ids: Tensor) -> Overhead | None:
        return self.summation.overhead(state, self.summation.attendance(ctx.number, ids))

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        ids, participation = ctx.sample()
        attendance = self.summation.attendance(ctx.number, ids)
        inside = tree.without(state, (SECURE,))
        asked, _ = self.inner.broadcast(ctx, inside, ids)
        here = ids[torch.from_numpy(attendance.trains)]
        inner = replace(ctx, sample=lambda: (here, participation))
        planned = {**inside, "reducer": self.summation.planned(inside["reducer"], attendance, ctx.number)}
        new, outcome = yield from self.inner.run(inner, planned, key)
        kept = {**new, **tree.select(state, (SECURE,))}
        summed = self.summation.summed(state, attendance, outcome.diagnostics)
        if summed is None:
            return kept, outcome
        down = summed.down + outcome.traffic.down + (len(ids) - len(here)) * wire_bytes(asked)
        said = {**outcome.diagnostics, **summed.said}
        return kept, replace(outcome, traffic=Traffic(summed.up, down), diagnostics=said)

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        return self.inner.broadcast(ctx, tree.without(state, (SECURE,)), ids)

    def model(self, state: Tree) -> Model:
        return self.inner.model(tree.without(state, (SECURE,)))

    def beside(self, state: Tree) -> dict[str, Model]:
        return self.inner.beside(tree.without(state, (SECURE,)))
