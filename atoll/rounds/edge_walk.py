"""One round of a hierarchy on its way, turn by turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Context, Summed, Train, Trained
from atoll.reducers import EDGES
from atoll.rounds.edge_sums import EdgeSum, SumsOfTurn
from atoll.rounds.edge_totals import EdgeTotals, changes, moved, server_halves
from atoll.rounds.server_step import client_key
from atoll.tree import Tree

if TYPE_CHECKING:
    from atoll.rounds.hierarchical import Hierarchical


class EdgeWalk:
    """One round of the hierarchy on its way: the edges' models, and what they have gathered since their last report.

    Models are None as long as they are the server's.
    """

    def __init__(self, round: Hierarchical, ctx: Context, sent: Tree, state: Tree, sums: Sequence[EdgeSum]) -> None:
        self.round, self.edges, self.ctx, self.sent = round, round.edges, ctx, sent
        self.server, self.chain, self.reducer = state["server"], state["chain"], state["reducer"]
        self.up: Tree = dict(state.get("edges", {}))
        self.models: list[Tree | None] = [None] * (self.edges.levels + 1)
        self.before: list[Tree | None] = [None] * (self.edges.levels + 1)
        self.weights = [self._zeros(level) for level in range(self.edges.levels)]
        self.counts = [self._zeros(level) for level in range(self.edges.levels)]
        self.top: EdgeTotals | None = None
        self.said: Tree = {}
        at = [ctx.number * self.edges.turns + turn for turn in range(self.edges.turns)]
        self.sums = [SumsOfTurn.of(round.summation, state, number, turn, sums) for turn, number in enumerate(at)]

    @property
    def summed(self) -> list[Summed]:
        """What a protocol took, for every sum."""
        return [one for turn in self.sums for one in turn.summed]

    def begin(self, turn: int) -> None:
        """Edges whose time it is are sent the model of the one above, from the server down."""
        for level in reversed(range(self.edges.levels)):
            if turn % self.edges.period(level):
                continue
            above = self.models[level + 1]
            parents = torch.from_numpy(self.edges.parents(level))
            rows = None if above is None else tree.rows(above, parents.to(tree.device(above)))
            self.models[level] = self.before[level] = rows
            self.weights[level], self.counts[level] = self._zeros(level), self._zeros(level)

    def request(self, turn: int, ids: Tensor, key: Tensor) -> Train:
        """All clients of all edges; from one broadcast, as long as all edges have the same."""
        ctx = self.ctx if turn == 0 else replace(self.ctx, order=rng.fold_name(self.ctx.order, "turn", turn))
        view = ctx.chain.client_view(self.chain)
        own = torch.from_numpy(self.edges.above[0])[ids]
        models, one = self.models[0], self.edges.sizes[0] == 1
        if (models is None or one) and (one or not tree.leaves(view)):
            sent = self.sent if models is None else tree.rows(models, 0)
            return ctx.train(sent, tree.rows(view, 0) if tree.leaves(view) else view, ids, client_key(key))
        at = own.to(tree.device(self.sent))
        sent = tree.stack(self.sent, len(ids)) if models is None else tree.rows(models, at)
        rows = tree.rows(view, at) if tree.leaves(view) else view
        return ctx.train(sent, rows, ids, client_key(key), per_client=True)

    def end(self, turn: int, trained: Trained, cohort: Any, active: list[Any], key: Tensor) -> None:
        """Every edge takes what came; whose time it is reports, as far up as that goes."""
        finish, at, own = self.ctx.program.reducer.finish, rng.fold_name(key, "reduce"), self.round.level == 0
        planned = self.sums[turn].planned(self.reducer) if own else self.reducer
        _, self.reducer, said = finish(trained.partial, planned, at)
        totals = EdgeTotals.scattered(said.get(EDGES), self.edges.sizes[0], self.ctx.program.like)
        self.said = tree.without(said, (EDGES,))
        self.said = self.sums[turn].heard(self.said, self.ctx.program.like, at) if own else self.said
        invites = torch.from_numpy(np.bincount(self.edges.above[0][cohort], minlength=self.edges.sizes[0]))
        totals, self.chain = server_halves(self.ctx, totals, self.chain, invites, rng.fold_name(key, "server"))
        for level in range(self.edges.levels):
            self.weights[level] = self.weights[level] + totals.weight
            self.counts[level] = self.counts[level] + totals.count
            if not self.round.forwards(level):
                self.models[level] = moved(self._rows(self.models[level], level), totals)
                if (turn + 1) % self.edges.period(level):
                    return
                totals = self._report(level)
            totals = self._sent_up(level, totals, active[level], rng.fold_name(key, "level", level), turn)
        self.top = totals

    def applied(self, rows: float, key: Tensor) -> tuple[Tree, bool]:
        """The server after its step; as it was where nobody contributed."""
        assert self.top is not None
        total = self.top.row(0)
        if (rows == 0 or self.round.summation.secret) and not bool(total.weight > 0):  # of a void sum, too
            return self.server, False
        return self.ctx.algorithm.apply(self.server, total, key), True

    def _report(self, level: int) -> EdgeTotals:
        """What edges changed since they were sent their model, with the mean weight of their rounds."""
        made = self.edges.rounds[level]
        models, before = (self._rows(x[level], level) for x in (self.models, self.before))
        weight, count = self.weights[level] / made, self.counts[level] / made
        return changes(models, before, self.ctx.update_like, weight, count)

    def _sent_up(self, level: int, totals: EdgeTotals, active: Any, key: Tensor, turn: int) -> EdgeTotals:
        parents, transforms = torch.from_numpy(self.edges.parents(level)), self.round.transforms
        above = 1 if level + 1 == self.edges.levels else self.edges.sizes[level + 1]
        if transforms.forwards(level):
            return totals.summed(parents, above)
        invited = np.bincount(self.edges.parents(level)[active], minlength=above).tolist()
        state = self.up[str(level)]
        sums = self.sums[turn] if self.round.level == level + 1 else None
        totals, self.up[str(level)] = transforms.reported(level, totals, parents, invited, state, key, sums)
        return totals

    def _rows(self, models: Tree | None, level: int) -> Tree:
        return tree.stack(self.sent, self.edges.sizes[level]) if models is None else models

    def _zeros(self, level: int) -> Tensor:
        return torch.zeros(self.edges.sizes[level], device=tree.device(self.sent))
