"""Sums of a hierarchy by a protocol: of the clients of every edge, or of the edges of a level."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from atoll import tree
from atoll.clock import Overhead
from atoll.core import Attendance, Info, Summation, Summed, Total, Update
from atoll.errors import ConfigError
from atoll.reducers import PLAN, SECURE, Mean
from atoll.rounds.edges import Edges
from atoll.tree import Tree

Overheads = Callable[[Attendance], Overhead | None]


class EdgeSum(NamedTuple):
    """One of them, as it was planned: in a turn, of whatever reports to this edge, or to the server (0)."""

    turn: int
    above: int
    attendance: Attendance


@dataclass
class SumsOfTurn:
    """The sums of one turn on their way; what they took is gathered, for the record."""

    summation: Summation
    state: Tree  # of the round
    number: int  # of the sums of this turn
    sums: Mapping[int, Attendance]  # by whose sum it is
    summed: list[Summed] = field(default_factory=list)

    @classmethod
    def of(cls, summation: Summation, state: Tree, number: int, turn: int, sums: Sequence[EdgeSum]) -> SumsOfTurn:
        return cls(summation, state, number, {one.above: one.attendance for one in sums if one.turn == turn})

    def planned(self, reducer: Tree) -> Tree:
        """The state of a reducer of groups, with what each must know of its own sum."""
        plans = {str(e): self.summation.planned({}, one, self.number) for e, one in self.sums.items()}
        found = {e: plan[PLAN] for e, plan in plans.items() if plan}
        return {**reducer, PLAN: found} if found else reducer

    def heard(self, said: Tree, like: Tree, key: Tensor) -> Tree:
        """What groups say, without what was counted of their sums: that is kept. Sums of nobody are driven, too."""
        for e, one in self.sums.items():
            told = said.get(str(e)) or self._driven(e, {}, like, key)[1]
            self._count(one, told)
        groups = {str(e) for e in self.sums}
        return {k: tree.without(v, (SECURE,)) if k in groups else v for k, v in said.items()}

    def takes(self, above: int, edge: int) -> bool:
        """Is what this edge sends in the sum?"""
        one = self.sums.get(above)
        return one is not None and bool(one.trains[one.ids == edge].any())

    def added(self, above: int, parts: Mapping[int, Total], like: Tree, key: Tensor) -> Total:
        """The sum of what edges send, by edge."""
        if above not in self.sums:
            return Total.zero(like)
        total, told = self._driven(above, parts, like, key)
        self._count(self.sums[above], told)
        return total

    def _driven(self, above: int, parts: Mapping[int, Total], like: Tree, key: Tensor) -> tuple[Total, Tree]:
        reducer = self.summation.reducer(Mean())
        state = self.summation.planned({}, self.sums[above], self.number)
        partial = reducer.lift(*_stack(parts), key) if parts else reducer.zero(like)
        total, _, told = reducer.finish(partial, state, key)
        count = sum((part.count for part in parts.values()), torch.zeros_like(total.count))
        return Total(total.value, total.weight, count), told

    def _count(self, attendance: Attendance, told: Tree) -> None:
        found = self.summation.summed(self.state, attendance, told)
        if found is not None:
            self.summed.append(found)


def _stack(parts: Mapping[int, Total]) -> tuple[Update, Info]:
    value = tree.map(lambda *xs: torch.stack(xs), *(part.value for part in parts.values()))
    weight = torch.stack([part.weight for part in parts.values()])
    none = torch.zeros_like(weight)
    return Update(value, weight), Info(torch.tensor(list(parts), device=weight.device), none, none, none)


def most_in_sum(edges: Edges, level: int) -> int:
    """How many are in one sum of a level at most; a ConfigError where there is no such level, or a sum of one."""
    if level > edges.levels:
        raise ConfigError(
            f"secure.level: {level}, and there are {edges.levels} levels of edges. Use at most {edges.levels}, whose "
            "sums the server makes, or leave level out: sums of the clients of every edge."
        )
    parents = edges.above[0] if level == 0 else edges.parents(level - 1)
    counts = np.bincount(parents)
    asked = np.maximum(1, np.round(counts * edges.shares[level]).astype(np.int64))
    if int(asked.min()) < 2:
        who = "client" if level == 0 else f"edge of level {level}"
        where = f"edge {int(asked.argmin())}" if level < edges.levels else "the server"
        raise ConfigError(
            f"secure: hides one among those of its sum, and {where} sums what a single {who} sends. Use fewer edges, "
            "a larger round.share, or another secure.level."
        )
    return int(asked.max())


def joined_overheads(overheads: Sequence[Overhead]) -> Overhead | None:
    """Of several sums, what the dearest of them takes."""
    return Overhead(*np.max(np.array(overheads), 0).tolist()) if overheads else None


def link_seconds(overhead: Overhead, seconds: Callable[[float], float]) -> tuple[float, float]:
    """Of an edge in a protocol, whose bytes go both ways over its link; and then of the one above, roles included."""
    trips = 2 * overhead.round_trips * seconds(0.0)
    own = overhead.client_seconds + trips + seconds(overhead.up + overhead.down)
    role: Any = overhead.role_up + overhead.role_down
    roles = seconds(role) + overhead.role_seconds if role or overhead.role_seconds else 0.0
    return own, roles + overhead.server_seconds
