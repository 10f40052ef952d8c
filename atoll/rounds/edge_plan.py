"""Who trains when in one round of a hierarchy: cohorts of the edges, and their virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import rng
from atoll.clock import Clock, Overhead, Timeline, transfer_seconds
from atoll.core import Attendance, Summation
from atoll.rng import host
from atoll.rounds.edge_sums import EdgeSum, Overheads, joined_overheads, link_seconds
from atoll.rounds.edges import Edges
from atoll.rounds.summation import PlainSummation

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Times = list[NDArray[np.float64]]  # of every edge of each level, and last of the server


@dataclass(frozen=True)
class EdgeLink:
    """Between an edge and the one above it."""

    mbps: float = np.inf
    latency_ms: float = 0.0

    def seconds(self, nbytes: float, slow_start: bool) -> float:
        rate, latency, loss = np.array([self.mbps * 1e6 / 8]), np.array([self.latency_ms / 1e3]), np.zeros(1)
        return float(transfer_seconds(nbytes, rate, latency, loss, slow_start)[0])


class EdgeBytes(NamedTuple):
    """Of one message: to and from a client, and to and from an edge."""

    down: float
    up: float
    edge_down: float
    edge_up: tuple[float, ...]  # of each level


class EdgePlan(NamedTuple):
    """One round of the server: who trains in each turn, which edges take part, and how long it takes."""

    cohorts: list[Ints]  # (C,) of each turn: those whose reports count, in the order of the pool
    active: list[list[Bools]]  # of each turn and level: (E,)
    timeline: Timeline | None
    sums: tuple[EdgeSum, ...] = ()  # by a protocol

    def messages(self, edges: Edges, level: int) -> int:
        """Models that edges of a level were sent in this round; as many updates come back."""
        period = edges.period(level)
        return int(sum(active[level].sum() for active in self.active[::period]))


@dataclass(frozen=True, eq=False)
class EdgeCourse:
    """What a round of the hierarchy is made of, with or without a clock."""

    edges: Edges
    links: tuple[EdgeLink, ...]
    clock: Clock | None
    steps: Callable[[Ints], Ints]
    summation: Summation = PlainSummation()
    level: int = 0  # whose sums it makes: of clients, or of the edges of this level, counted from 1

    def plan(
        self,
        number: int,
        pool: Ints,
        key: Tensor,
        sizes: EdgeBytes,
        paces: tuple[float, ...],
        overhead: Overheads = lambda attendance: None,
    ) -> EdgePlan:
        """Round `number`; `paces`: the time it begins, seconds for a step, seconds to compress.

        `overhead`: what a sum takes in virtual time.
        """
        edges, start = self.edges, paces[0]
        now = [np.full(size, start) for size in (*edges.sizes, 1)]
        active = [np.ones(size, bool) for size in (*edges.sizes, 1)]
        came = [np.zeros(size, bool) for size in (*edges.sizes, 1)]
        cohorts, actives, rows, sums = list[Ints](), list[list[Bools]](), list[Timeline](), list[EdgeSum]()
        for turn in range(edges.turns):
            active = self._begin(turn, active, came, now, key, sizes)
            cohort = self._cohort(turn, pool, active[0], key)
            counted = np.ones(len(cohort), bool)
            at = number * edges.turns + turn
            for e, here in self._by_edge(cohort):
                if self.clock is not None:
                    extra = overhead(self._attendance(at, cohort[here], len(here))) if self._of_clients else None
                    row = self._timed(self.clock, at, cohort[here], sizes, float(now[0][e]), paces, extra)
                    now[0][e], counted[here] = row.end, row.counted
                    rows.append(row)
                if self._of_clients:
                    there = here[counted[here]]
                    sums.append(EdgeSum(turn, e, self._attendance(at, cohort[there], len(here))))
                    counted[there] = sums[-1].attendance.trains
            cohorts.append(cohort[counted])
            actives.append(active)
            came[0][edges.above[0][cohorts[-1]]] = True
            sums += self._end(turn, at, active, came, now, sizes, overhead)
        line = None if self.clock is None else _joined(rows, start, float(now[-1][0]), sizes, paces)
        return EdgePlan(cohorts, actives, line, tuple(sums))

    @property
    def _of_clients(self) -> bool:
        return self.summation.secret and self.level == 0

    def _attendance(self, at: int, ids: Ints, asked: int) -> Attendance:
        return self.summation.attendance(at, torch.from_numpy(ids.copy()), asked)

    def _timed(
        self,
        clock: Clock,
        at: int,
        ids: Ints,
        sizes: EdgeBytes,
        now: float,
        paces: tuple[float, ...],
        extra: Overhead | None,
    ) -> Timeline:
        down, up = (sizes.down, sizes.up) if extra is None else extra.around(sizes.down)
        return clock.timeline(at, ids, self.steps(ids), down, up, now, paces[1], extra, paces[2])

    def _begin(
        self, turn: int, active: list[Bools], came: list[Bools], now: Times, key: Tensor, sizes: EdgeBytes
    ) -> list[Bools]:
        """Edges whose time it is are drawn, and sent the model of the one above; from the server down."""
        new = list(active)
        for level in reversed(range(self.edges.levels)):
            if turn % self.edges.period(level):
                continue
            parents = self.edges.parents(level)
            draws = host.uniform(rng.fold_name(key, "edges", level, turn), np.arange(len(parents)))
            able = new[level + 1][parents]
            came[level][:] = False
            new[level] = able & _first(draws, np.where(able, parents, -1), self.edges.shares[level + 1])
            arrives = now[level + 1][parents] + self._link_seconds(level, sizes.edge_down)
            now[level] = np.where(new[level], arrives, now[level])
        return new

    def _end(
        self,
        turn: int,
        at: int,
        active: list[Bools],
        came: list[Bools],
        now: Times,
        sizes: EdgeBytes,
        overhead: Overheads,
    ) -> list[EdgeSum]:
        """Edges whose time it is report; the one above waits for all of its own. With the sums of a protocol."""
        sums = list[EdgeSum]()
        for level in range(self.edges.levels):
            if (turn + 1) % self.edges.period(level):
                continue
            parents = self.edges.parents(level)
            came[level + 1][parents[active[level] & came[level]]] = True
            if self.summation.secret and self.level == level + 1:
                sums += self._summed(turn, at, active[level], came[level], now, overhead)
                continue
            arrives = now[level] + self._link_seconds(level, sizes.edge_up[level])
            np.maximum.at(now[level + 1], parents[active[level]], arrives[active[level]])
        return sums

    def _summed(self, turn: int, at: int, active: Bools, came: Bools, now: Times, overhead: Overheads) -> list[EdgeSum]:
        """What edges of the protocol's level report is summed by it, at each one above, which then goes on."""
        level, sums = self.level - 1, list[EdgeSum]()
        parents = self.edges.parents(level)
        for p in np.unique(parents[active]).tolist():
            mine = (parents == p) & active
            sums.append(EdgeSum(turn, p, self._attendance(at, np.flatnonzero(mine & came), int(mine.sum()))))
            extra = None if self.clock is None else overhead(sums[-1].attendance)
            own, above = (0.0, 0.0) if extra is None else link_seconds(extra, lambda n: self._link_seconds(level, n))
            now[level + 1][p] = max(now[level + 1][p], float(now[level][mine].max()) + own) + above
        return sums

    def _cohort(self, turn: int, pool: Ints, active: Bools, key: Tensor) -> Ints:
        own = self.edges.above[0][pool]
        here = pool[active[own]]
        if self.edges.shares[0] == 1 or not len(here):
            return here
        draws = host.uniform(rng.fold_name(key, "cohort", turn), here)
        return np.asarray(here[_first(draws, self.edges.above[0][here], self.edges.shares[0])])

    def _by_edge(self, cohort: Ints) -> list[tuple[int, Ints]]:
        own = self.edges.above[0][cohort]
        return [(int(e), np.flatnonzero(own == e)) for e in np.unique(own)]

    def _link_seconds(self, level: int, nbytes: float) -> float:
        return 0.0 if self.clock is None else self.links[level].seconds(nbytes, self.clock.slow_start)


def _first(draws: NDArray[np.float64], group: Ints, share: float) -> Bools:
    """Of every group the share with the lowest draws, at least one; of group -1 nobody.

    >>> _first(np.array([0.3, 0.1, 0.2, 0.9]), np.array([0, 0, 0, -1]), 0.6).tolist()
    [False, True, True, False]
    """
    chosen = np.zeros(len(draws), bool)
    for g in np.unique(group[group >= 0]):
        here = np.flatnonzero(group == g)
        chosen[here[np.argsort(draws[here], kind="stable")[: max(1, round(share * len(here)))]]] = True
    return chosen


def _joined(rows: list[Timeline], start: float, end: float, sizes: EdgeBytes, paces: tuple[float, ...]) -> Timeline:
    """All turns of all edges as one line: a client is in it as often as it was asked."""

    def column(name: str) -> NDArray[Any]:
        return np.concatenate([np.zeros(0), *(getattr(row, name) for row in rows)])

    ids, steps = (column(name).astype(np.int64) for name in ("ids", "steps"))
    received, sent, arrived, began = (column(name) for name in ("received", "sent", "arrived", "begins"))
    status, void = column("status").astype(np.int8), any(row.void for row in rows)
    times = received, sent, arrived
    line = Timeline(start, end, ids, steps, *times, status, void, sizes.down, sizes.up, paces[1], paces[2], began=began)
    extra = [row.overhead for row in rows if row.overhead is not None]
    if not extra:
        return line
    down, up = (np.concatenate([np.full(len(row.ids), getattr(row, name)) for row in rows]) for name in ("down", "up"))
    return replace(line, down=down, up=up, encrypted=column("encrypted"), overhead=joined_overheads(extra))
