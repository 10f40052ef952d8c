"""A round whose sum is computed by secure aggregation: who is lost on the way is known before anybody trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import tree
from atoll.clock import Overhead
from atoll.core import Context, Model, Outcome, Play, Reducer, Round, Traffic
from atoll.errors import ConfigError
from atoll.protocols import NEVER, CostModel, Course, ProtocolCosts, ProtocolWork, SecureAggregation
from atoll.reducers import PLAN, SECURE, SecureMean
from atoll.rounds.around import RoundAround
from atoll.tree import Tree
from atoll.wire import wire_bytes

Mode = Literal["real", "cost"]


class Attendance(NamedTuple):
    """Who stays how long in one round."""

    ids: NDArray[np.int64]
    lost_at: NDArray[np.int64]  # the first answer that a client does not give; NEVER
    arrives: NDArray[np.bool_]  # its vector, which is in the sum even if it is lost later
    void: bool  # too few stay to the end: there is no sum, and nobody trains

    @property
    def trains(self) -> NDArray[np.bool_]:
        return self.arrives & (not self.void)


@dataclass(frozen=True, eq=False)
class Secured(RoundAround):
    """A round around another. The inner round sees only those whose vectors will be in the sum.

    Whoever is lost before leaves no trace: what it keeps between rounds is as it was. With mode = "real" the reducer
    drives the protocol; with "cost" the same sum is a plain one, and a model of this machine says what the protocol
    would have taken. Bytes of the protocol take the place of the update's.
    """

    protocol: SecureAggregation
    mode: Mode
    clients: int  # of a cohort: the threshold is of these
    dropout: float
    seed: int
    course: Course
    small: (
        SecureAggregation | None
    )  # the protocol for smaller cohorts, where a cost model is needed, here or by a clock

    @classmethod
    def around(cls, inner: Round, *options: Any) -> Secured:
        """A ConfigError where there is no server that could sum."""
        if not inner.has_server:
            raise ConfigError(
                "secure: lets a server learn a sum and nothing else, and in this round there is no server that sums "
                "all of them. "
                "Leave [secure] out, or use round.name = 'central'."
            )
        return cls(inner, *options)

    @property
    def modelled(self) -> bool:
        return self.small is not None

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        inner = self.inner.reducer(named)
        if self.mode == "real" and not inner.spec().additive and named.spec().additive:
            raise ConfigError(
                "secure: a protocol gives the sum of whole updates, and in this round the server works on every "
                "client's own: it averages parts of models, or matches their units. Leave [secure] out."
            )
        return SecureMean(self.protocol) if self.mode == "real" else inner

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        state = self.inner.init(ctx, model, key)
        if not self.modelled:
            return state
        numbers = torch.tensor(tree.count(ctx.program.like))
        return {**state, SECURE: {"numbers": numbers, **_written(CostModel.nothing())}}

    def begun(self, state: Tree, seconds_per_step: Callable[[], float]) -> Tree:
        inner = self.inner.begun(tree.without(state, (SECURE,)), seconds_per_step)
        if self.small is None:
            return inner
        model = CostModel.fitted(self.small, self.course, self.clients, int(state[SECURE]["numbers"]))
        device = state[SECURE]["numbers"].device
        return {**inner, SECURE: {**state[SECURE], **tree.to(_written(model), device)}}

    def attendance(self, number: int, ids: Tensor) -> Attendance:
        """Drawn from (seed, round, client)."""
        named = ids.cpu().numpy()
        lost_at = self.course.lost_at(self.seed, number, named, self.dropout)
        stay = int((lost_at == NEVER).sum())
        void = stay < self.protocol.least(self.clients) or self.course.ends(lost_at)
        return Attendance(named, lost_at, self.course.in_sum(lost_at), void)

    def overhead(self, ctx: Context, state: Tree, ids: Tensor) -> Overhead:
        return _overhead(self._predicted(state, self.attendance(ctx.number, ids), ctx), self.course.steps)

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        ids, participation = ctx.sample()
        attendance = self.attendance(ctx.number, ids)
        inside = tree.without(state, (SECURE,))
        asked, _ = self.inner.broadcast(ctx, inside, ids)
        here = ids[torch.from_numpy(attendance.trains)]
        inner = replace(ctx, sample=lambda: (here, participation))
        planned = inside
        if self.mode == "real":
            planned = {**inside, "reducer": {**inside["reducer"], PLAN: self._plan(attendance, ctx.number)}}
        new, outcome = yield from self.inner.run(inner, planned, key)
        kept = {**new, SECURE: state[SECURE]} if self.modelled else new
        costs = self._costs(state, attendance, outcome, ctx)
        up, down = (round(each * len(ids)) for each in (costs.up, costs.down))
        down += outcome.traffic.down + (len(ids) - len(here)) * wire_bytes(asked)
        said = {**outcome.diagnostics, SECURE: _said(attendance, costs)}
        return kept, replace(outcome, traffic=Traffic(up, down), diagnostics=said)

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        return self.inner.broadcast(ctx, tree.without(state, (SECURE,)), ids)

    def model(self, state: Tree) -> Model:
        return self.inner.model(tree.without(state, (SECURE,)))

    def beside(self, state: Tree) -> dict[str, Model]:
        return self.inner.beside(tree.without(state, (SECURE,)))

    def _plan(self, attendance: Attendance, number: int) -> Tree:
        """What the reducer must know of a round."""
        ids, lost_at = (torch.from_numpy(x.copy()) for x in (attendance.ids, attendance.lost_at))
        facts = {"vector_step": self.course.vector_step, "round": number, "void": attendance.void}
        return {"ids": ids, "lost_at": lost_at, **{name: torch.tensor(x) for name, x in facts.items()}}

    def _costs(self, state: Tree, attendance: Attendance, outcome: Outcome, ctx: Context) -> ProtocolCosts:
        """Counted, or predicted."""
        if self.mode == "cost":
            return self._predicted(state, attendance, ctx)
        return ProtocolCosts.read(outcome.diagnostics[SECURE]["costs"].tolist())

    def _predicted(self, state: Tree, attendance: Attendance, ctx: Context) -> ProtocolCosts:
        if not len(attendance.ids):
            return ProtocolCosts.nothing()
        n, lost = len(attendance.ids), int((~attendance.arrives).sum())
        model = CostModel(state[SECURE]["coefficients"].cpu().numpy(), state[SECURE]["fit"].cpu().numpy())
        return model.costs(ProtocolWork(n, self.protocol.partners(n), tree.count(ctx.program.like), lost))


def _said(attendance: Attendance, costs: ProtocolCosts) -> Tree:
    """For the record: of a client that stays, the step at which it is lost is -1."""
    steps = np.where(attendance.lost_at == NEVER, -1, attendance.lost_at)
    return {
        "ids": torch.from_numpy(attendance.ids.copy()),
        "lost_at": torch.from_numpy(steps),
        "in_sum": torch.from_numpy(attendance.trains.copy()),
        "void": torch.tensor(attendance.void),
        "costs": torch.tensor(costs, dtype=torch.float64),
    }


def _written(model: CostModel) -> Tree:
    return {"coefficients": torch.from_numpy(model.coefficients.copy()), "fit": torch.from_numpy(model.fit.copy())}


def _overhead(costs: ProtocolCosts, steps: int) -> Overhead:
    """A role's messages have their own latency, once: it is not among the round trips of all."""
    own, role = costs[4:7], costs[7:]
    return Overhead(*own, costs.server_seconds, max(0, steps - 1 - any(role)), *role)
