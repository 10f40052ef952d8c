"""Sums in clear, and sums by secure aggregation: who is lost on the way is known before anybody trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from atoll import tree
from atoll.clock import Overhead
from atoll.core import Attendance, Chain, Reducer, Summation, Summed
from atoll.protocols import NEVER, CostModel, Course, ProtocolCosts, ProtocolWork, SecureAggregation, least_of
from atoll.reducers import PLAN, SECURE, SecureMean
from atoll.tree import Tree

Mode = Literal["real", "cost"]
_NOTED = 0.01  # probability of a void round, from which it is said
_SERVER = ProtocolCosts._fields.index("server_seconds")


class ProtocolSeconds(NamedTuple):
    """What a protocol takes in virtual time, where a file says so."""

    client: float
    server: float
    role: float


@dataclass(frozen=True)
class PlainSummation(Summation):
    """The server sees every update: everybody stays, and nothing is to be known of it."""

    @property
    def secret(self) -> bool:
        return False

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        return named

    def init(self, like: Tree) -> Tree:
        return {}

    def begun(self, state: Tree) -> Tree:
        return {}

    def residues(self, chain: Chain) -> Chain:
        return chain

    def attendance(self, number: int, ids: Tensor, asked: int | None = None) -> Attendance:
        named = ids.cpu().numpy()
        return Attendance(named, np.full(len(named), NEVER), np.ones(len(named), bool), False)

    def overhead(self, state: Tree, attendance: Attendance) -> Overhead | None:
        return None

    def planned(self, reducer: Tree, attendance: Attendance, number: int) -> Tree:
        return reducer

    def summed(self, state: Tree, attendance: Attendance, diagnostics: Tree) -> Summed | None:
        return None


@dataclass(frozen=True, eq=False)
class ProtocolSummation(Summation):
    """Sums of up to `clients` by a protocol, of which the threshold is a share.

    With mode = "real" the reducer drives the protocol; with "cost" the same sum is a plain one, and a model of this
    machine says what the protocol would have taken. Virtual time is always that model's, which is what it remembers.
    """

    protocol: SecureAggregation
    mode: Mode
    clients: int  # of a cohort: the threshold is of these
    dropout: float
    seed: int
    course: Course
    small: SecureAggregation | None  # the protocol among fewer, where a cost model is needed, here or by a clock
    encoded: Callable[[Chain], Chain]  # a chain with residues at its end
    seconds: ProtocolSeconds | None = None  # in virtual time; None: the model's

    @property
    def secret(self) -> bool:
        return True

    @property
    def modelled(self) -> bool:
        return self.small is not None

    def cautions(self) -> tuple[str, ...]:
        least = self.protocol.least(self.clients)
        void = self.course.void_probability(self.clients, least, self.dropout)
        if void <= _NOTED:
            return ()
        fewer = f"fewer than {least} of {self.clients} clients stay" if least < self.clients else "somebody is lost"
        advice = "Lower secure.dropout, " + ("or secure.threshold." if least < self.clients else "or take secagg.")
        return (f"secure.dropout: about {void:.0%} of rounds will be void, and learn nothing: {fewer}. {advice}",)

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        return SecureMean(self.protocol) if self.mode == "real" else named

    def init(self, like: Tree) -> Tree:
        if not self.modelled:
            return {}
        return {SECURE: {"numbers": torch.tensor(tree.count(like)), **_written(CostModel.nothing())}}

    def begun(self, state: Tree) -> Tree:
        if self.small is None:
            return {}
        numbers = state[SECURE]["numbers"]
        model = CostModel.fitted(self.small, self.course, self.clients, int(numbers))
        return {SECURE: {**state[SECURE], **tree.to(_written(model), numbers.device)}}

    def residues(self, chain: Chain) -> Chain:
        return self.encoded(chain)

    def attendance(self, number: int, ids: Tensor, asked: int | None = None) -> Attendance:
        """Drawn from (seed, round, client). Where sums differ in how many were asked, one alone is no sum."""
        named = ids.cpu().numpy()
        lost_at = self.course.lost_at(self.seed, number, named, self.dropout)
        stay = int((lost_at == NEVER).sum())
        least = self.protocol.least(self.clients) if asked is None else self._least(asked)
        void = stay < least or self.course.ends(lost_at)
        return Attendance(named, lost_at, self.course.in_sum(lost_at), void)

    def overhead(self, state: Tree, attendance: Attendance) -> Overhead | None:
        """A role's messages have their own latency, once: it is not among the round trips of all."""
        costs = self._predicted(state, attendance)
        if self.seconds is not None and len(attendance.ids):
            client, server, role_seconds = self.seconds
            costs = costs._replace(own_seconds=client, server_seconds=server, role_seconds=role_seconds)
        own, role = costs[4:7], costs[7:]
        return Overhead(*own, costs.server_seconds, max(0, self.course.steps - 1 - any(role)), *role)

    def planned(self, reducer: Tree, attendance: Attendance, number: int) -> Tree:
        if self.mode == "cost":
            return reducer
        ids, lost_at = (torch.from_numpy(x.copy()) for x in (attendance.ids, attendance.lost_at))
        facts = {"vector_step": self.course.vector_step, "round": number, "void": attendance.void}
        plan = {"ids": ids, "lost_at": lost_at, **{name: torch.tensor(x) for name, x in facts.items()}}
        return {**reducer, PLAN: plan}

    def summed(self, state: Tree, attendance: Attendance, diagnostics: Tree) -> Summed | None:
        """Counted, or predicted."""
        if self.mode == "cost":
            costs = self._predicted(state, attendance)
        else:
            costs = ProtocolCosts.read(diagnostics[SECURE]["costs"].tolist())
        up, down = (round(each * len(attendance.ids)) for each in (costs.up, costs.down))
        return Summed(up, down, {SECURE: _said(attendance, costs)})

    def _least(self, asked: int) -> int:
        """Of a sum that may have fewer than others: two at least, and more than all where it is not for so few."""
        least = least_of(self.protocol, asked)
        return asked + 1 if least is None else max(2, least)

    def _predicted(self, state: Tree, attendance: Attendance) -> ProtocolCosts:
        if not len(attendance.ids):
            return ProtocolCosts.nothing()
        n, lost, own = len(attendance.ids), int((~attendance.arrives).sum()), state[SECURE]
        model = CostModel(own["coefficients"].cpu().numpy(), own["fit"].cpu().numpy())
        return model.costs(ProtocolWork(n, self.protocol.partners(n), int(own["numbers"]), lost))


def all_summed(sums: Sequence[Summed]) -> Summed | None:
    """Several sums of a round as one: bytes in all; of the record, means over clients, and the server's seconds."""
    if not sums:
        return None
    said = [one.said[SECURE] for one in sums]
    void = torch.stack([one["void"] for one in said])
    counts = np.array([len(one["ids"]) for one in said], np.float64)
    costs = np.array([one["costs"].tolist() for one in said]).reshape(len(said), -1)
    mean = ProtocolCosts.read((counts @ costs / max(1.0, counts.sum())).tolist())
    mean = mean._replace(server_seconds=float(costs[:, _SERVER].sum()))
    whole = {name: torch.cat([one[name] for one in said]) for name in ("ids", "lost_at", "in_sum")}
    facts = {"void": void.all(), "sums": torch.tensor(len(said)), "void_sums": void.sum()}
    told = {**whole, **facts, "costs": torch.tensor(mean, dtype=torch.float64)}
    return Summed(sum(one.up for one in sums), sum(one.down for one in sums), {SECURE: told})


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
