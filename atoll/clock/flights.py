"""Clients at work for a server that does not wait for all of them: who is in flight, and who comes back first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.clock.clock import Clock
from atoll.clock.quantities import Floats, Ints
from atoll.clock.timeline import COUNTED, DROPPED, LATE, Overhead, Timeline
from atoll.threefry import uniform_at

FREE = -1  # the id of a place that nobody has


class Flights(NamedTuple):
    """Places for clients at work, (P,) each: as many as may be at work at a time."""

    id: Ints  # FREE: nobody
    version: Ints  # of the model that it was sent: server steps made before
    steps: Ints
    status: Ints  # what becomes of it at `due`: COUNTED it reports, DROPPED it is lost, LATE the server gives it up
    began: Floats
    received: Floats
    sent: Floats
    arrived: Floats
    due: Floats
    rank: Floats  # of reports at one moment the lower one is first

    @classmethod
    def nobody(cls, places: int) -> Flights:
        whole, real = np.zeros(places, np.int64), np.zeros(places)
        return cls(np.full(places, FREE), whole, whole, whole, real, real, real, real, real, real)

    @property
    def busy(self) -> NDArray[np.bool_]:
        return np.asarray(self.id != FREE)

    def rows(self, index: NDArray[np.bool_] | Ints) -> Flights:
        return self.mapped(lambda column: column[index])

    def without(self, places: Ints) -> Flights:
        """The same with these places free, and nothing left in them."""
        return self.mapped(lambda column: _put(column, places, 0))._replace(id=_put(self.id, places, FREE))

    def with_rows(self, places: Ints, rows: Flights) -> Flights:
        news = iter(rows)
        return self.mapped(lambda old: _put(old, places, next(news)))

    def mapped(self, change: Callable[[Any], Any]) -> Flights:
        """The same change to every column."""
        return Flights._make(map(change, self))

    def by_id(self) -> Flights:
        return self.rows(np.argsort(self.id, kind="stable"))


class Messages(NamedTuple):
    """What every client of a step is sent and sends, and how fast a client of slowness 1 is."""

    down: float  # bytes
    up: float
    seconds_per_step: float
    seconds_to_compress: float = 0.0


class FlowStep(NamedTuple):
    """One step of the server: until when it waited, who came, and who is still at work."""

    start: float
    end: float
    reports: Flights  # by id: what the server makes its step of
    others: Flights  # lost, or given up, since the step before
    flights: Flights
    overhead: Overhead | None = None  # of a protocol among those who came, which the end has waited for
    joint: Floats | None = None  # seconds of each of them in it

    def timeline(self, messages: Messages) -> Timeline:
        """In the form of a round's."""
        rows = joined([self.reports, self.others])
        order = np.argsort(rows.id, kind="stable")
        joint = None if self.joint is None else np.concatenate([self.joint, np.zeros(len(self.others.id))])[order]
        rows = rows.rows(order)
        times, status = (rows.received, rows.sent, rows.arrived), rows.status.astype(np.int8)
        facts = messages.down, messages.up, messages.seconds_per_step, messages.seconds_to_compress
        line = Timeline(self.start, self.end, rows.id, rows.steps, *times, status, False, *facts, began=rows.began)
        return line if joint is None else replace(line, overhead=self.overhead, joint=joint)


@dataclass(frozen=True)
class Barrier:
    """When a server makes its step: when `buffer` clients have reported, or `window` seconds after its last one.

    buffer = 1 is the asynchronous server, a window of inf the one that counts, no buffer (None) the one that looks at
    the clock alone. A client whose model is more than `max_staleness` steps old is given up.
    """

    buffer: int | None = 1
    window: float = np.inf
    max_staleness: int | None = None


@dataclass(frozen=True, eq=False)
class Flow:
    """A server that keeps `concurrency` clients at work, on a clock."""

    clock: Clock
    barrier: Barrier
    steps: Callable[[Ints], Ints]  # of each of these clients in one training

    def step(self, version: int, start: float, flights: Flights, pool: Ints, messages: Messages) -> FlowStep:
        """From one step of the server to the next. Each of the `pool` is asked once in it at most, if it is idle.

        A client that reports or is lost frees its place at that moment, and an idle one in reach takes it, with the
        model of that moment; who comes back at the very moment of the step is replaced after it. Nobody is in one
        step twice. Where nobody is at work and nobody can be asked, the server makes its step with what it has. Whoever
        came back before the start, while a protocol of the step before was under way, is the first to be in this one.
        """
        flights, reports, others = self._give_up(version, start, flights)
        queue = self._queue(version, pool, flights)
        now, limit, came = start, start + self.barrier.window, 0
        wanted = np.inf if self.barrier.buffer is None else self.barrier.buffer
        flights, queue = self._ask(version, now, flights, queue, messages)
        while True:
            due = flights.due[flights.busy].min(initial=np.inf)
            if not np.isfinite(due):
                due = self.clock.next_reach(queue, now) if len(queue) else np.inf
            if due > limit or not np.isfinite(due):
                return _made(start, limit if np.isfinite(limit) else now, reports, others, flights)
            now = max(now, float(due))
            back, lost = _at(flights, now)
            back = back[: int(min(wanted - came, len(back)))]
            came += len(back)
            reports, others = [*reports, flights.rows(back)], [*others, flights.rows(lost)]
            flights = flights.without(np.concatenate([back, lost]))
            if came >= wanted or now >= limit:
                return _made(start, now, reports, others, flights)
            flights, queue = self._ask(version, now, flights, queue, messages)

    def after_protocol(self, step: FlowStep, overhead: Overhead | None) -> FlowStep:
        """The same once a protocol among those who came is over, too. Meanwhile nobody is asked."""
        if overhead is None:
            return step
        joint, seconds = self.clock.joint_seconds(step.reports.id, overhead)
        return step._replace(end=step.end + seconds, overhead=overhead, joint=joint)

    def _give_up(self, version: int, now: float, flights: Flights) -> tuple[Flights, list[Flights], list[Flights]]:
        """Without those whose model is too old."""
        most = self.barrier.max_staleness
        old = np.flatnonzero(flights.busy & (flights.version < version - (np.inf if most is None else most)))
        rows = flights.rows(old)
        late = rows._replace(status=np.full(len(old), LATE), due=np.full(len(old), now))
        return flights.without(old), [flights.rows(old[:0])], [late]

    def _queue(self, version: int, pool: Ints, flights: Flights) -> Ints:
        """The idle clients of the pool in the order in which they are asked, drawn from (seed, version, client)."""
        idle = np.setdiff1d(pool, flights.id[flights.busy])
        order = np.argsort(uniform_at((self.clock.seed, "idle", version), idle, 0), kind="stable")
        return np.asarray(idle[order])

    def _ask(self, version: int, now: float, flights: Flights, queue: Ints, messages: Messages) -> tuple[Flights, Ints]:
        """Every free place gets the next client of the queue that can be reached."""
        free = np.flatnonzero(~flights.busy)
        if not len(free) or not len(queue):
            return flights, queue
        chosen = np.flatnonzero(self.clock.reaches(version, queue, now))[: len(free)]
        rows = self._sent_off(version, now, queue[chosen], messages)
        return flights.with_rows(free[: len(chosen)], rows), np.delete(queue, chosen)

    def _sent_off(self, version: int, now: float, ids: Ints, messages: Messages) -> Flights:
        steps, pace = self.steps(ids), messages.seconds_per_step
        work = (ids, steps, messages.down, messages.up, now, pace)
        trips = self.clock.trips(version, *work, compressing=messages.seconds_to_compress)
        patience = now + self.clock.patience.deadline
        late = np.minimum(trips.heard, trips.arrived) > patience
        status = np.select([late, trips.lost], [LATE, DROPPED], COUNTED).astype(np.int64)
        due = np.where(late, patience, np.where(trips.lost, trips.heard, trips.arrived))
        whole, began = np.full(len(ids), version), np.full(len(ids), now)
        times = (trips.received, trips.sent, trips.arrived)
        return Flights(ids, whole, steps, status, began, *times, due, self.clock.rank(version, ids))

    def many(
        self,
        steps: int,
        places: int,
        pools: Callable[[int], Ints],
        messages: Messages,
        overhead: Overhead | None = None,
    ) -> list[Timeline]:
        """So many steps from the beginning on, without training: time does not depend on it."""
        now, flights, lines = 0.0, Flights.nobody(places), []
        for version in range(steps):
            step = self.after_protocol(self.step(version, now, flights, pools(version), messages), overhead)
            lines.append(step.timeline(messages))
            now, flights = step.end, step.flights
        return lines


def _made(start: float, end: float, came: list[Flights], others: list[Flights], flights: Flights) -> FlowStep:
    return FlowStep(start, end, joined(came).by_id(), joined(others).by_id(), flights)


def joined(parts: list[Flights]) -> Flights:
    """Rows of all, one after the other."""
    return Flights._make(np.concatenate(columns) for columns in zip(*parts, strict=True))


def _at(flights: Flights, now: float) -> tuple[Ints, Ints]:
    """Places whose clients report by now, the first of them first; and places of those that are lost or given up."""
    here = np.flatnonzero(flights.busy & (flights.due <= now))
    back = here[flights.status[here] == COUNTED]
    return back[np.lexsort((flights.rank[back], flights.due[back]))], here[flights.status[here] != COUNTED]


def _put(column: Any, places: Ints, values: Any) -> Any:
    new = column.copy()
    new[places] = values
    return new
