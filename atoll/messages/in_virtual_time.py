"""All workers in one process: a heap of events in virtual time. The same workers give the same run, to the last bit.

A worker does one thing at a time: what comes while it works waits. Events of one moment come in the order in which
they were caused. Every message is encoded and decoded as on a network, so that its bytes are those of the wire.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf

from atoll.errors import ConfigError, ProtocolError
from atoll.messages.actor import Actor, Refused
from atoll.messages.ended import Delivery, Ended, Fate
from atoll.messages.faults import NO_FAULTS, Faults
from atoll.messages.frames import MOST_BYTES
from atoll.messages.link_numbers import SeenNumbers
from atoll.messages.post import Deed, Parcel
from atoll.messages.virtual_network import LinkTimes, VirtualNetwork
from atoll.messages.worker import Mail, Worker
from atoll.messages.worker_topology import WorkerTopology
from atoll.wire import decode

_DIED = "died at {:g} seconds"


def run(
    workers: Mapping[str, Worker],
    topology: WorkerTopology,
    *,
    network: VirtualNetwork | None = None,
    faults: Faults = NO_FAULTS,
    most_events: int = 1_000_000,
    most_seconds: float = inf,
    most_bytes: int = MOST_BYTES,
) -> Ended:
    """Run these workers until all have ended; a ProtocolError where they never will."""
    if set(workers) != set(topology.names):
        odd = sorted(set(workers) ^ set(topology.names))
        raise ConfigError(f"workers: {odd[0]!r} is in only one of workers and topology. Name the same in both.")
    faults.check(topology)
    times = (network or VirtualNetwork()).among(topology.names)
    actors = {name: Actor(name, workers[name], topology, most_bytes) for name in topology.names}
    return _Heap(topology, actors, times, faults, most_bytes).run(most_events, most_seconds)


@dataclass
class _Place:
    """A worker's device: what waits for it, and whether it is at work."""

    actor: Actor
    waiting: deque[Callable[[float], None]] = field(default_factory=deque)
    busy: bool = False
    dead: str = ""
    uplink_free: float = 0.0
    timers: dict[str, int] = field(default_factory=dict)  # how often each was set: an older setting is void

    @property
    def over(self) -> bool:
        return bool(self.dead) or (self.actor.ended and not self.busy)


@dataclass
class _Heap:
    topology: WorkerTopology
    actors: Mapping[str, Actor]
    times: LinkTimes
    faults: Faults
    most_bytes: int
    now: float = 0.0
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    order: count[int] = field(default_factory=count)
    log: list[Delivery] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.places = {name: _Place(actor) for name, actor in self.actors.items()}
        self.last: dict[tuple[str, str], float] = {}  # when the last message of a link arrives
        self.seen: dict[tuple[str, str], SeenNumbers] = {}
        self.flying: dict[int, tuple[str, Parcel, float]] = {}  # messages on their way

    def run(self, most_events: int, most_seconds: float) -> Ended:
        for name, at in self.faults.deaths.items():
            self._at(at, partial(self._die, name))
        for name in self.actors:
            self._at(0.0, partial(self._hand, name, partial(self._begin, name)))
        for done in count():
            if not self.events or all(place.over for place in self.places.values()):
                break
            time, _, event = heapq.heappop(self.events)
            if time > most_seconds or done >= most_events:
                limit = f"{most_seconds:g} seconds" if time > most_seconds else f"{most_events:,} events"
                raise ProtocolError(f"workers: not at their end after {limit}. {self._standing()}")
            self.now = time
            event()
        return self._ended()

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (time, next(self.order), event))

    def _begin(self, name: str, _: float) -> None:
        self._did(name, self.actors[name].begin())

    def _hand(self, name: str, call: Callable[[float], None]) -> None:
        """Something for a worker: now, or when it has time."""
        self.places[name].waiting.append(call)
        self._serve(name)

    def _serve(self, name: str) -> None:
        place = self.places[name]
        while place.waiting and not place.busy and not place.dead and not place.actor.ended:
            place.waiting.popleft()(self.now)

    def _did(self, name: str, deed: Deed | None) -> None:
        """What a handler asked for, at once or when its work is done."""
        if deed is None:
            return
        if not deed.seconds:
            self._perform(name, deed)
            return
        self.places[name].busy = True
        self._at(self.now + deed.seconds * self.times.slowness(name), partial(self._worked, name, deed))

    def _worked(self, name: str, deed: Deed) -> None:
        place = self.places[name]
        place.busy = False
        if not place.dead:
            self._perform(name, deed)
            self._serve(name)

    def _perform(self, name: str, deed: Deed) -> None:
        place = self.places[name]
        for parcel in deed.parcels:
            self._send(name, parcel)
        for timer, seconds in deed.timers.items():
            place.timers[timer] = setting = place.timers.get(timer, 0) + 1
            if seconds is not None:
                self._at(self.now + seconds, partial(self._hand, name, partial(self._alarm, name, timer, setting)))

    def _alarm(self, name: str, timer: str, setting: int, _: float) -> None:
        if self.places[name].timers[timer] == setting:
            self._did(name, self.actors[name].alarm(timer))

    def _send(self, sender: str, parcel: Parcel) -> None:
        place, link = self.places[sender], (sender, parcel.receiver)
        fate = self.faults.of(*link, parcel.number)
        way = self.times.departure(*link, len(parcel.data), self.now, place.uplink_free)
        place.uplink_free = way.free
        arrives = max(way.arrives, self.last.get(link, 0.0))
        if "drop" in fate:
            return self._write(sender, parcel, self.now, inf, "dropped")
        if "delay" in fate:
            arrives += self.faults.late_seconds
        self.last[link] = arrives
        if "reorder" in fate:
            arrives += self.faults.late_seconds
        for _ in range(1 + ("duplicate" in fate)):
            token = next(self.order)
            self.flying[token] = (sender, parcel, self.now)
            self._at(arrives, partial(self._arrive, token))
        return None

    def _arrive(self, token: int) -> None:
        sender, parcel, sent = self.flying.pop(token)
        place = self.places[parcel.receiver]
        if place.dead or place.actor.ended:
            return self._write(sender, parcel, sent, inf if place.dead else self.now, "unread")
        if not self.seen.setdefault((sender, parcel.receiver), SeenNumbers()).add(parcel.number):
            return self._write(sender, parcel, sent, self.now, "duplicate")
        return self._hand(parcel.receiver, partial(self._deliver, sender, parcel, sent, self.now))

    def _deliver(self, sender: str, parcel: Parcel, sent: float, arrived: float, _: float) -> None:
        payload = decode(parcel.data, self.most_bytes)
        deed = self.actors[parcel.receiver].deliver(Mail(sender, payload.kind, payload.tree))
        self._write(sender, parcel, sent, arrived, "refused" if deed is None else "delivered")
        self._did(parcel.receiver, deed)

    def _write(self, sender: str, parcel: Parcel, sent: float, arrived: float, fate: Fate) -> None:
        size = len(parcel.data)
        self.log.append(Delivery(sender, parcel.receiver, parcel.kind, parcel.number, size, sent, arrived, fate))

    def _die(self, name: str) -> None:
        """Its neighbours hear of it when everything that it sent has arrived, and some time has passed."""
        place = self.places[name]
        if place.actor.ended and not place.busy:
            return
        place.dead = _DIED.format(self.now)
        for other in self.topology.neighbours(name):
            hears = max(self.now + self.faults.detected_after, self.last.get((name, other), 0.0))
            self._at(hears, partial(self._hand, other, partial(self._lose, other, name)))

    def _lose(self, name: str, other: str, _: float) -> None:
        self._did(name, self.actors[name].lose(other, self.places[other].dead))

    def _ended(self) -> Ended:
        gone = {name: place.dead for name, place in self.places.items() if place.dead}
        for sender, parcel, sent in self.flying.values():
            self._write(sender, parcel, sent, inf, "unread")
        if not all(place.over for place in self.places.values()):
            raise ProtocolError(f"workers: nothing more will happen. {self._standing()}")
        results = {name: a.result for name, a in self.actors.items() if a.result is not None and name not in gone}
        return Ended(results, gone, tuple(self._refused()), self.now, tuple(self.log))

    def _refused(self) -> list[Refused]:
        return [refused for actor in self.actors.values() for refused in actor.refused]

    def _standing(self) -> str:
        """Who waits, and what may be the cause."""
        waiting = [name for name, place in self.places.items() if not place.over]
        lost = [f"{d.kind!r} of {d.sender} to {d.receiver} was {d.fate}" for d in self.log if d.fate == "dropped"]
        died = [f"{name} {place.dead}" for name, place in self.places.items() if place.dead]
        causes = "; ".join([*map(str, self._refused()), *lost, *died][:4])
        advice = "Call post.end in each, and set a timer where a message may not come."
        return f"Not ended: {', '.join(waiting)}. {causes + '. ' if causes else ''}{advice}"
