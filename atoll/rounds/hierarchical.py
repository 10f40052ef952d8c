"""Servers between the clients and the server: edges average their own clients, and report to the one above."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from atoll import rng, tree
from atoll.clock import Clock, Timeline
from atoll.core import Algorithm, Columns, Context, Model, Outcome, Part, Play, Reducer, Round, Traffic, Train, Trained
from atoll.errors import ConfigError
from atoll.reducers import EDGES, Grouped
from atoll.rounds.clocked import NAME as CLOCK
from atoll.rounds.clocked import begun_clock, bytes_of, clock_state, never_waits
from atoll.rounds.edge_plan import EdgeBytes, EdgeCourse, EdgeLink, EdgePlan
from atoll.rounds.edge_totals import EdgeTotals, EdgeTransforms, changes, moved, server_halves
from atoll.rounds.edges import Edges
from atoll.rounds.in_groups import InGroups
from atoll.rounds.server_step import client_key, server_state
from atoll.tree import Tree
from atoll.wire import wire_bytes

S = TypeVar("S")
_PACES = ("now", "seconds_per_step", "seconds_to_compress")
_REFUSED: dict[Part, str] = {
    "secure": "lets one server learn the sum of a cohort, and here every edge sums its own clients. Leave [secure] "
    "out, or use round.name = 'central'.",
    "broadcast": "compresses what one server sends, and here every edge sends its own model. Leave it out, or use "
    "round.name = 'central'.",
    "server.root": "is data of the one server, and here edges reduce what clients send. Leave it out, or use "
    "round.name = 'central'.",
    "privacy.canaries": "are looked for in one sum, and here every edge has its own. Leave them out, or use "
    "round.name = 'central'.",
}
_ROUNDS = "Use round.rounds = [1], or round.name = 'central'."


@dataclass(frozen=True, eq=False)
class Hierarchical(Round):
    """Edges make rounds of their own between two of the server's (HierFAVG: Liu et al., 2020).

    An edge is sent a model w, makes `rounds` rounds of w_e <- w_e + mean change of what reports to it, and reports
    w_e - w with the mean weight of its rounds; the server applies the mean of these with the algorithm's own step. All
    clients of all edges in one turn are one request. Edges run the server's half of the clients' transforms.
    """

    edges: Edges
    transforms: EdgeTransforms
    links: tuple[EdgeLink, ...]
    clock: Clock | None = None
    steps: Callable[[Tensor], Tensor] = torch.ones_like

    @property
    def sums_per_round(self) -> int:
        return self.edges.turns

    def refuses(self, part: Part) -> str | None:
        if part in ("noise", "local.privacy"):
            many = f"a client is in {self.edges.turns} sums of one round, which is not accounted. {_ROUNDS}"
            return many if self.edges.turns > 1 else None
        return _REFUSED.get(part)

    def check(self, algorithm: Algorithm) -> None:
        name = type(algorithm).__name__
        if algorithm.traits().pooled:
            raise ConfigError(
                f"round.name: {name} trains on all data in one place, and there are no edges. Use 'central'."
            )
        if algorithm.traits().counts_clients and self.edges.turns > 1:
            raise ConfigError(
                f"round.name: {name} keeps the mean of all clients' states on the server, and here clients report to "
                f"edges several times before it hears of them. {_ROUNDS}"
            )

    def sampler(self, named: S) -> S:
        alone = self.edges.turns == 1 and self.edges.sizes[0] == 1 and min(self.edges.shares) == 1
        return named if alone else InGroups(named)  # type: ignore[return-value]

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        if named.needs_root():
            raise ConfigError(
                f"reducer.name: {type(named).__name__} needs server.root, which {_REFUSED['server.root']}"
            )
        own = self.edges.above[0]
        smallest = int(np.bincount(own).min())
        named.check_cohort(max(1, round(smallest * self.edges.shares[0])))
        return Grouped(named, torch.from_numpy(own), self.edges.sizes[0])

    def in_virtual_time(self, clock: Clock, steps: Callable[[Tensor], Tensor]) -> Round | None:
        never_waits(clock, "Every edge waits for all of its clients, or for deadline seconds")
        return replace(self, clock=clock, steps=steps)

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        state = server_state(ctx, model, key)
        if any(not self._forwards(level) for level in range(self.edges.levels)):
            _check_parts(ctx.update_like, ctx.algorithm.send(state["server"]))
        chain = tree.map(torch.clone, tree.stack(state["chain"], self.edges.sizes[0]))
        state = {**state, "chain": chain}
        if not self.transforms.none:
            above = (*self.edges.sizes[1:], 1)
            pairs = enumerate(zip(self.edges.sizes, above, strict=True))
            state["edges"] = {str(i): self.transforms.init(ctx.update_like, *pair) for i, pair in pairs}
        return state if self.clock is None else {**state, CLOCK: clock_state(self.clock, ctx)}

    def begun(self, state: Tree, seconds_per_step: Callable[[], float]) -> Tree:
        if self.clock is None:
            return state
        return {**state, CLOCK: begun_clock(self.clock, state[CLOCK], seconds_per_step)}

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        """The server's model, with the first edge's view of the transforms."""
        view = ctx.chain.client_view(state["chain"])
        return ctx.algorithm.send(state["server"]), tree.rows(view, 0) if tree.leaves(view) else view

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        pool, participation = ctx.sample()
        sent = ctx.algorithm.send(state["server"])
        sizes = self._sizes(ctx, sent)
        paces = (0.0, 0.0, 0.0) if self.clock is None else tuple(float(state[CLOCK][name]) for name in _PACES)
        plan = self._course.plan(ctx.number, pool.cpu().numpy(), key, sizes, paces)
        walk = EdgeWalk(self, ctx, sent, state)
        answers: list[Trained] = []
        for turn, cohort in enumerate(plan.cohorts):
            walk.begin(turn)
            at = key if turn == 0 else rng.fold_name(key, "turn", turn)
            answers.append((yield walk.request(turn, torch.from_numpy(cohort), at)))
            walk.end(turn, answers[-1], np.bincount(self.edges.above[0][cohort], minlength=self.edges.sizes[0]), at)
        server, changed = walk.applied(sum(x.rows for x in answers), rng.fold_name(key, "apply"))
        new = {**state, "server": server, "chain": walk.chain, "reducer": walk.reducer}
        if not self.transforms.none:
            new["edges"] = walk.up
        if plan.timeline is not None:
            new[CLOCK] = {**state[CLOCK], "now": torch.tensor(plan.timeline.end, dtype=torch.float64)}
        said = {**walk.said, "traffic": self._levels(ctx, plan, sizes)}
        said |= {name: server[name] for name in ctx.algorithm.traits().records}
        ids, examples = (torch.cat(x) for x in ([*map(torch.from_numpy, plan.cohorts)], [x.examples for x in answers]))
        traffic = self._traffic(ctx, plan, sizes)
        facts = (lambda: _joined(answers), traffic, changed, said, plan.timeline)
        return new, Outcome(ids, participation, examples, *facts)

    def forecast(self, first: Timeline, pools: Callable[[int], Tensor], rounds: int) -> list[Timeline] | None:
        assert self.clock is not None
        now, lines = 0.0, list[Timeline]()
        down, up = float(np.max(first.down)), float(np.max(first.up))
        sizes = EdgeBytes(down, up, down, up)
        for number in range(rounds):
            paces = (now, first.seconds_per_step, first.seconds_to_compress)
            key = rng.key(self.clock.seed, "forecast", number)
            line = self._course.plan(number, pools(number).numpy(), key, sizes, paces).timeline
            assert line is not None
            lines.append(line)
            now = line.end
        return lines

    @property
    def _course(self) -> EdgeCourse:
        return EdgeCourse(self.edges, self.links, self.clock, lambda ids: self.steps(torch.from_numpy(ids)).numpy())

    def _forwards(self, level: int) -> bool:
        """Does an edge of this level send the very sum that came to it?"""
        return self.edges.rounds[level] == 1 and self.transforms.none

    def _sizes(self, ctx: Context, sent: Tree) -> EdgeBytes:
        return EdgeBytes(*bytes_of(ctx, sent), wire_bytes(sent), self.transforms.upload(ctx.update_like).most_bytes)

    def _levels(self, ctx: Context, plan: EdgePlan, sizes: EdgeBytes) -> Tree:
        """For the record: bytes down and up, between clients and their edges and above; up at most."""
        counts = [(len(np.concatenate(plan.cohorts)), sizes.down, sizes.up)]
        counts += [(plan.messages(self.edges, i), sizes.edge_down, sizes.edge_up) for i in range(self.edges.levels)]
        names = ["clients", *(f"level_{i + 1}" for i in range(self.edges.levels))]
        bytes_ = ({"down": int(n * down), "up": int(n * up)} for n, down, up in counts)
        return {name: tree.map(torch.tensor, x) for name, x in zip(names, bytes_, strict=True)}

    def _traffic(self, ctx: Context, plan: EdgePlan, sizes: EdgeBytes) -> Traffic:
        counted, messages = len(np.concatenate(plan.cohorts)), 0
        messages = sum(plan.messages(self.edges, i) for i in range(self.edges.levels))
        received = counted if plan.timeline is None else int(np.isfinite(plan.timeline.received).sum())
        up = None if ctx.upload_bytes is None else counted * ctx.upload_bytes
        down = int(received * sizes.down + messages * sizes.edge_down)
        return Traffic(up, down, int(messages * sizes.edge_up))


class EdgeWalk:
    """One round of the hierarchy on its way: the edges' models, and what they have gathered since their last report.

    Models are None as long as they are the server's.
    """

    def __init__(self, round: Hierarchical, ctx: Context, sent: Tree, state: Tree) -> None:
        self.round, self.edges, self.ctx, self.sent = round, round.edges, ctx, sent
        self.server, self.chain, self.reducer = state["server"], state["chain"], state["reducer"]
        self.up: Tree = dict(state.get("edges", {}))
        self.models: list[Tree | None] = [None] * (self.edges.levels + 1)
        self.before: list[Tree | None] = [None] * (self.edges.levels + 1)
        self.weights = [self._zeros(level) for level in range(self.edges.levels)]
        self.counts = [self._zeros(level) for level in range(self.edges.levels)]
        self.top: EdgeTotals | None = None
        self.said: Tree = {}

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

    def end(self, turn: int, trained: Trained, invited: Any, key: Tensor) -> None:
        """Every edge takes what came; whose time it is reports, as far up as that goes."""
        finish = self.ctx.program.reducer.finish
        _, self.reducer, said = finish(trained.partial, self.reducer, rng.fold_name(key, "reduce"))
        totals = EdgeTotals.scattered(said.get(EDGES), self.edges.sizes[0], self.ctx.program.like)
        self.said = tree.without(said, (EDGES,))
        invites = torch.from_numpy(invited)
        totals, self.chain = server_halves(self.ctx, totals, self.chain, invites, rng.fold_name(key, "server"))
        for level in range(self.edges.levels):
            self.weights[level] = self.weights[level] + totals.weight
            self.counts[level] = self.counts[level] + totals.count
            if not self.round._forwards(level):
                self.models[level] = moved(self._rows(self.models[level], level), totals)
                if (turn + 1) % self.edges.period(level):
                    return
                totals = self._report(level)
            totals = self._sent_up(level, totals, rng.fold_name(key, "level", level))
        self.top = totals

    def applied(self, rows: float, key: Tensor) -> tuple[Tree, bool]:
        """The server after its step; as it was where nobody contributed."""
        assert self.top is not None
        total = self.top.row(0)
        if rows == 0 and not bool(total.weight > 0):
            return self.server, False
        return self.ctx.algorithm.apply(self.server, total, key), True

    def _report(self, level: int) -> EdgeTotals:
        """What edges changed since they were sent their model, with the mean weight of their rounds."""
        made = self.edges.rounds[level]
        models, before = (self._rows(x[level], level) for x in (self.models, self.before))
        weight, count = self.weights[level] / made, self.counts[level] / made
        return changes(models, before, self.ctx.update_like, weight, count)

    def _sent_up(self, level: int, totals: EdgeTotals, key: Tensor) -> EdgeTotals:
        parents = torch.from_numpy(self.edges.parents(level))
        above = 1 if level + 1 == self.edges.levels else self.edges.sizes[level + 1]
        if self.round.transforms.none:
            return totals.summed(parents, above)
        state = self.up[str(level)]
        totals, self.up[str(level)] = self.round.transforms.reported(totals, parents, above, state, key)
        return totals

    def _rows(self, models: Tree | None, level: int) -> Tree:
        return tree.stack(self.sent, self.edges.sizes[level]) if models is None else models

    def _zeros(self, level: int) -> Tensor:
        return torch.zeros(self.edges.sizes[level], device=tree.device(self.sent))


def _check_parts(update: Tree, sent: Tree) -> None:
    """Refuse updates that an edge cannot apply to its model."""
    parts = {"delta": "params", "buffers": "buffers"}
    other = sorted(set(update) - set(parts))
    if other or any(set(update[of]) - set(sent.get(name, {})) for of, name in parts.items() if of in update):
        what = f"send {other[0]!r} beside a change of the model" if other else "change what they are not sent"
        raise ConfigError(
            f"round.rounds: edges apply changes of the model, and clients of this algorithm {what}. {_ROUNDS}"
        )


def _joined(answers: list[Trained]) -> Columns:
    """Of all turns."""
    columns = [answer.columns() for answer in answers]
    before = np.cumsum([0, *(len(c.loss) for c in columns)])
    order = torch.cat([c.order + int(n) for c, n in zip(columns, before, strict=False)])
    uploads = [c.upload for c in columns if c.upload is not None]
    loss, finite = (torch.cat([getattr(c, name) for c in columns]) for name in ("loss", "finite"))
    return Columns(loss, finite, order, torch.cat(uploads) if len(uploads) == len(columns) else None)
