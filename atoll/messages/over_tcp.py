"""One worker on this host, its neighbours behind TCP: handlers run in the calling thread, connections in another."""

from __future__ import annotations

import socket
import time
from queue import Empty

from atoll.errors import ConfigError, ProtocolError
from atoll.messages.actor import Actor
from atoll.messages.addresses import AddressList
from atoll.messages.connection_limits import USUAL_LIMITS, ConnectionLimits
from atoll.messages.connections import Connections
from atoll.messages.ended import Ended
from atoll.messages.handshake import BYE, FAILED, INTERRUPTED
from atoll.messages.link import Arrived, Incoming, Left, Lost
from atoll.messages.mutual_tls import MutualTls
from atoll.messages.post import Deed
from atoll.messages.worker import Worker
from atoll.messages.worker_topology import WorkerTopology

_LISTENING = 0.2  # seconds after which Ctrl-C is looked for, also where a wait cannot be interrupted


class StrandedError(ProtocolError):
    """Everybody else has ended or is gone, no timer runs, and the worker waits: often what another's failure did."""


def run_worker(
    name: str,
    worker: Worker,
    topology: WorkerTopology,
    addresses: AddressList,
    *,
    tls: MutualTls | None = None,
    seconds: float = 3600.0,
    limits: ConnectionLimits = USUAL_LIMITS,
    listener: socket.socket | None = None,
) -> Ended:
    """Run one worker until it ends; a ProtocolError after `seconds`, or when nothing can happen to it any more.

    `listener` is a socket that listens already, in place of one at the worker's own address.
    """
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"seconds: must be above 0 and finite (got {seconds}). How long may it take at most?")
    actor = Actor(name, worker, topology, limits.most_bytes)
    connections = Connections(name, topology, addresses, tls, limits, listener)
    last_word = FAILED
    try:
        connections.start()
        ended = _Stage(actor, connections, seconds).play()
        last_word = BYE
    except KeyboardInterrupt:
        last_word = INTERRUPTED
        raise
    finally:
        connections.finish(last_word)
    return ended


class _Stage:
    """The events of one worker, one after the other."""

    def __init__(self, actor: Actor, connections: Connections, seconds: float) -> None:
        self.actor, self.connections, self.seconds = actor, connections, seconds
        self.timers: dict[str, float] = {}  # when each runs out
        self.left = set(actor.neighbours)  # who may still say something
        self.gone: dict[str, str] = {}
        self.began = time.monotonic()

    def play(self) -> Ended:
        self._perform(self.actor.begin())
        while not self.actor.ended:
            self._next()
        result = self.actor.result
        assert result is not None
        seconds = time.monotonic() - self.began
        return Ended({self.actor.name: result}, self.gone, tuple(self.actor.refused), seconds)

    def _next(self) -> None:
        """What comes first: a message, a timer, or the end of all patience."""
        now, end = time.monotonic(), self.began + self.seconds
        due = min(self.timers.values(), default=end)
        if now >= end:
            raise ProtocolError(f"{self.actor.name}: did not end within {self.seconds:g} seconds. {self._standing()}")
        if now >= due:
            timer = min(self.timers, key=self.timers.__getitem__)
            del self.timers[timer]
            return self._perform(self.actor.alarm(timer))
        try:
            heard = self.connections.inbox.get(timeout=min(max(0.0, min(due, end) - now), _LISTENING))
        except Empty:
            return None
        self._hear(heard)
        if not self.left and not self.timers and not self.actor.ended and self.connections.inbox.empty():
            raise StrandedError(f"{self.actor.name}: nothing more will happen. {self._standing()}")
        return None

    def _hear(self, heard: Incoming) -> None:
        if isinstance(heard, Arrived):
            self.connections.taken(heard.bytes)
            return self._perform(self.actor.deliver(heard.mail))
        self.left.discard(heard.name)
        if isinstance(heard, Left):
            return None
        assert isinstance(heard, Lost)
        self.gone[heard.name] = heard.why
        return self._perform(self.actor.lose(heard.name, heard.why))

    def _perform(self, deed: Deed | None) -> None:
        for parcel in deed.parcels if deed else ():
            self.connections.send(parcel)
        now = time.monotonic()
        for timer, seconds in deed.timers.items() if deed else ():
            self.timers.pop(timer, None)
            if seconds is not None:
                self.timers[timer] = now + seconds

    def _standing(self) -> str:
        """Who could still say something, and what may be the cause."""
        waiting = ", ".join(sorted(self.left)) or "nobody"
        causes = [*map(str, self.actor.refused), *(f"{name} is gone: {why}" for name, why in self.gone.items())]
        said = "; ".join(causes[:4])
        return f"Still there: {waiting}. {said + '. ' if said else ''}Set a timer where a message may not come."
