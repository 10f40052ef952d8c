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
from atoll.core import (
    Algorithm,
    Columns,
    Context,
    Model,
    Outcome,
    Part,
    Play,
    Reducer,
    Round,
    RoundTraits,
    Summation,
    Summed,
    Traffic,
    Trained,
)
from atoll.errors import ConfigError
from atoll.reducers import Grouped
from atoll.rounds.algorithm_needs import check_needs
from atoll.rounds.clocked import NAME as CLOCK
from atoll.rounds.clocked import begun_clock, bytes_of, clock_state, never_waits
from atoll.rounds.edge_plan import EdgeBytes, EdgeCourse, EdgeLink, EdgePlan
from atoll.rounds.edge_sums import most_in_sum
from atoll.rounds.edge_transforms import EdgeTransforms
from atoll.rounds.edge_walk import EdgeWalk
from atoll.rounds.edges import Edges
from atoll.rounds.in_groups import InGroups
from atoll.rounds.server_step import server_state
from atoll.rounds.summation import PlainSummation, all_summed
from atoll.tree import Tree
from atoll.wire import wire_bytes

S = TypeVar("S")
_PACES = ("now", "seconds_per_step", "seconds_to_compress")
_REFUSED: dict[Part, str] = {
    "broadcast": "compresses what one server sends, and here every edge sends its own model. Leave it out, or use "
    "round.name = 'central'.",
    "server.root": "is data of the one server, and here edges reduce what clients send. Leave it out, or use "
    "round.name = 'central'.",
    "privacy.canaries": "are looked for in one sum, and here every edge has its own. Leave them out, or use "
    "round.name = 'central'.",
}
_SHARES = (
    "edges whose sums a protocol makes have different numbers of clients, each of which would add a share of the noise "
    "that all rely on, or hide its report among fewer. Leave [secure] out, or say secure.level = 1: every edge then "
    "adds the noise itself."
)
_NOISE: tuple[Part, ...] = ("noise", "local.privacy")
_ROUNDS = "Use round.rounds = [1], or round.name = 'central'."


@dataclass(frozen=True, eq=False)
class Hierarchical(Round):
    """Edges make rounds of their own between two of the server's (HierFAVG: Liu et al., 2020).

    An edge is sent a model w, makes `rounds` rounds of w_e <- w_e + mean change of what reports to it, and reports
    w_e - w with the mean weight of its rounds; the server applies the mean of these with the algorithm's own step. All
    clients of all edges in one turn are one request. Edges run the server's half of the clients' transforms.

    A protocol makes the sums of the clients of every edge (level 0), or those of the edges of a level, with whoever is
    above them as its server.
    """

    edges: Edges
    transforms: EdgeTransforms
    links: tuple[EdgeLink, ...]
    clock: Clock | None = None
    steps: Callable[[Tensor], Tensor] = torch.ones_like
    summation: Summation = PlainSummation()
    level: int = 0

    def traits(self) -> RoundTraits:
        turns, cautions, refused = self.edges.turns, self.transforms.cautions(), dict(_REFUSED)
        if turns > 1 or self._of_clients:
            many = f"a client is in {turns} sums of one round, which is not accounted. {_ROUNDS}"
            refused |= dict.fromkeys(_NOISE, many if turns > 1 else _SHARES)
        return RoundTraits(sums_per_round=turns, sums_differ=True, cautions=tuple(cautions), refuses=refused)

    def parties(self, level: int, drawn: int | None) -> int | None:
        most = most_in_sum(self.edges, level)
        return most if drawn is None or level else min(most, drawn)

    def summed_by(self, summation: Summation, level: int) -> Round | None:
        if level == 0:
            return replace(self, summation=summation)
        most = most_in_sum(self.edges, level)
        transforms = self.transforms.with_residues(level - 1, summation.residues, self.edges, most)
        return replace(self, summation=summation, level=level, transforms=transforms)

    def check(self, algorithm: Algorithm) -> None:
        counted = f"and here clients report to edges several times before it hears of them. {_ROUNDS}"
        check_needs(
            algorithm, "and there are no edges. Use round.name = 'central'.", counted if self.edges.turns > 1 else None
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
        inner = self.summation.reducer(named) if self._of_clients else named
        return Grouped(inner, torch.from_numpy(own), self.edges.sizes[0])

    def in_virtual_time(self, clock: Clock, steps: Callable[[Tensor], Tensor]) -> Round | None:
        never_waits(clock, "Every edge waits for all of its clients, or for deadline seconds")
        return replace(self, clock=clock, steps=steps)

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        state = server_state(ctx, model, key)
        if any(not self.forwards(level) for level in range(self.edges.levels)):
            _check_parts(ctx.update_like, ctx.algorithm.send(state["server"]))
        chain = tree.map(torch.clone, tree.stack(state["chain"], self.edges.sizes[0]))
        like = ctx.program.like if self.level == 0 else ctx.update_like
        state = {**state, "chain": chain, **self.summation.init(like)}
        if not self.transforms.none:
            state["edges"] = self.transforms.init(ctx.update_like, self.edges)
        return state if self.clock is None else {**state, CLOCK: clock_state(self.clock, ctx)}

    def begun(self, state: Tree, seconds_per_step: Callable[[], float]) -> Tree:
        state = {**state, **self.summation.begun(state)}
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
        asked = ctx.number, pool.cpu().numpy(), key, sizes, paces
        plan = self._course.plan(*asked, lambda attendance: self.summation.overhead(state, attendance))
        walk = EdgeWalk(self, ctx, sent, state, plan.sums)
        answers: list[Trained] = []
        for turn, cohort in enumerate(plan.cohorts):
            walk.begin(turn)
            at = key if turn == 0 else rng.fold_name(key, "turn", turn)
            answers.append((yield walk.request(turn, torch.from_numpy(cohort), at)))
            walk.end(turn, answers[-1], cohort, plan.active[turn], at)
        server, changed = walk.applied(sum(x.rows for x in answers), rng.fold_name(key, "apply"))
        new = {**state, "server": server, "chain": walk.chain, "reducer": walk.reducer}
        if not self.transforms.none:
            new["edges"] = walk.up
        if plan.timeline is not None:
            new[CLOCK] = {**state[CLOCK], "now": torch.tensor(plan.timeline.end, dtype=torch.float64)}
        summed = all_summed(walk.summed)
        said = {
            **walk.said,
            "traffic": self._levels(ctx, plan, sizes, summed),
            **({} if summed is None else summed.said),
        }
        said |= {name: server[name] for name in ctx.algorithm.traits().records}
        ids, examples = (torch.cat(x) for x in ([*map(torch.from_numpy, plan.cohorts)], [x.examples for x in answers]))
        traffic = self._traffic(ctx, plan, sizes, summed)
        facts = (lambda: _joined(answers), traffic, changed, said, plan.timeline)
        return new, Outcome(ids, participation, examples, *facts)

    def forecast(self, first: Timeline, pools: Callable[[int], Tensor], rounds: int) -> list[Timeline] | None:
        assert self.clock is not None
        now, lines, extra = 0.0, list[Timeline](), first.overhead
        down, up = float(np.max(first.down)) - (0.0 if extra is None else extra.down), float(np.max(first.up))
        sizes = EdgeBytes(down, up, down, (up,) * self.edges.levels)
        for number in range(rounds):
            paces = (now, first.seconds_per_step, first.seconds_to_compress)
            key = rng.key(self.clock.seed, "forecast", number)
            line = self._course.plan(number, pools(number).numpy(), key, sizes, paces, lambda _: extra).timeline
            assert line is not None
            lines.append(line)
            now = line.end
        return lines

    @property
    def _course(self) -> EdgeCourse:
        steps = lambda ids: self.steps(torch.from_numpy(ids)).numpy()  # noqa: E731
        return EdgeCourse(self.edges, self.links, self.clock, steps, self.summation, self.level)

    @property
    def _of_clients(self) -> bool:
        """Does a protocol make the sums of clients?"""
        return self.summation.secret and self.level == 0

    def forwards(self, level: int) -> bool:
        """Does an edge of this level send the very sum that came to it?"""
        return self.edges.rounds[level] == 1 and self.transforms.forwards(level)

    def _sizes(self, ctx: Context, sent: Tree) -> EdgeBytes:
        above = (self.transforms.upload(i, ctx.update_like).most_bytes for i in range(self.edges.levels))
        return EdgeBytes(*bytes_of(ctx, sent), wire_bytes(sent), tuple(above))

    def _levels(self, ctx: Context, plan: EdgePlan, sizes: EdgeBytes, summed: Summed | None) -> Tree:
        """For the record: bytes down and up, between clients and their edges and above; up at most.

        Where a protocol makes the sums, its bytes take the place of what is sent up.
        """
        counts = [(self._sent_to(plan), sizes.down, sizes.up)]
        counts += [(plan.messages(self.edges, i), sizes.edge_down, sizes.edge_up[i]) for i in range(self.edges.levels)]
        names = ["clients", *(f"level_{i + 1}" for i in range(self.edges.levels))]
        bytes_ = [{"down": int(n * down), "up": int(n * up)} for n, down, up in counts]
        if summed is not None:
            mine = bytes_[self.level]
            bytes_[self.level] = {"down": mine["down"] + summed.down, "up": summed.up}
        return {name: tree.map(torch.tensor, x) for name, x in zip(names, bytes_, strict=True)}

    def _sent_to(self, plan: EdgePlan) -> int:
        """Clients that were sent a model and were not late: those that a protocol lost later, too."""
        if self._of_clients:
            return sum(len(one.attendance.ids) for one in plan.sums)
        return len(np.concatenate(plan.cohorts))

    def _traffic(self, ctx: Context, plan: EdgePlan, sizes: EdgeBytes, summed: Summed | None) -> Traffic:
        counted = self._sent_to(plan)
        messages = [plan.messages(self.edges, i) for i in range(self.edges.levels)]
        received = counted if plan.timeline is None else int(np.isfinite(plan.timeline.received).sum())
        up = None if ctx.upload_bytes is None else counted * ctx.upload_bytes
        down = int(received * sizes.down + sum(messages) * sizes.edge_down)
        between = [int(n * size) for n, size in zip(messages, sizes.edge_up, strict=True)]
        if summed is not None and self.level:
            between[self.level - 1] = summed.up
        elif summed is not None:
            up = summed.up
        return Traffic(up, down + (0 if summed is None else summed.down), sum(between))


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
