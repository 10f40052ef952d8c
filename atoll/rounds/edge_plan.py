"""Who trains when in one round of a hierarchy: cohorts of the edges, and their virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from atoll import rng
from atoll.clock import Clock, Timeline, transfer_seconds
from atoll.rng import host
from atoll.rounds.edges import Edges

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
    edge_up: float


class EdgePlan(NamedTuple):
    """One round of the server: who trains in each turn, which edges take part, and how long it takes."""

    cohorts: list[Ints]  # (C,) of each turn: those whose reports count, in the order of the pool
    active: list[list[Bools]]  # of each turn and level: (E,)
    timeline: Timeline | None

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

    def plan(self, number: int, pool: Ints, key: Tensor, sizes: EdgeBytes, paces: tuple[float, ...]) -> EdgePlan:
        """Round `number`; `paces`: the time it begins, seconds for a step, seconds to compress."""
        edges, start = self.edges, paces[0]
        now = [np.full(size, start) for size in (*edges.sizes, 1)]
        active = [np.ones(size, bool) for size in (*edges.sizes, 1)]
        cohorts, actives, rows = list[Ints](), list[list[Bools]](), list[Timeline]()
        for turn in range(edges.turns):
            active = self._begin(turn, active, now, key, sizes)
            cohort = self._cohort(turn, pool, active[0], key)
            counted = np.ones(len(cohort), bool)
            for e, here in self._by_edge(cohort):
                if self.clock is None:
                    continue
                work = cohort[here], self.steps(cohort[here]), sizes.down, sizes.up, float(now[0][e])
                row = self.clock.timeline(number * edges.turns + turn, *work, paces[1], None, paces[2])
                now[0][e], counted[here] = row.end, row.counted
                rows.append(row)
            cohorts.append(cohort[counted])
            actives.append(active)
            self._end(turn, active, now, sizes)
        line = None if self.clock is None else _joined(rows, start, float(now[-1][0]), sizes, paces)
        return EdgePlan(cohorts, actives, line)

    def _begin(self, turn: int, active: list[Bools], now: Times, key: Tensor, sizes: EdgeBytes) -> list[Bools]:
        """Edges whose time it is are drawn, and sent the model of the one above; from the server down."""
        new = list(active)
        for level in reversed(range(self.edges.levels)):
            if turn % self.edges.period(level):
                continue
            parents = self.edges.parents(level)
            draws = host.uniform(rng.fold_name(key, "edges", level, turn), np.arange(len(parents)))
            able = new[level + 1][parents]
            new[level] = able & _first(draws, np.where(able, parents, -1), self.edges.shares[level + 1])
            arrives = now[level + 1][parents] + self._link_seconds(level, sizes.edge_down)
            now[level] = np.where(new[level], arrives, now[level])
        return new

    def _end(self, turn: int, active: list[Bools], now: Times, sizes: EdgeBytes) -> None:
        """Edges whose time it is report; the one above waits for all of its own."""
        for level in range(self.edges.levels):
            if (turn + 1) % self.edges.period(level):
                continue
            arrives = now[level] + self._link_seconds(level, sizes.edge_up)
            np.maximum.at(now[level + 1], self.edges.parents(level)[active[level]], arrives[active[level]])

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
    return Timeline(start, end, ids, steps, *times, status, void, sizes.down, sizes.up, paces[1], paces[2], began=began)
