"""What a handler can ask for: messages to neighbours, timers, an end. It is done when the handler has returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from atoll.errors import ConfigError, ProtocolError
from atoll.messages.frames import encoded, tensors
from atoll.schema import did_you_mean
from atoll.tree import Tree
from atoll.wire import Layout


class ClosedPostError(ProtocolError):
    """A worker that acts after its end, or when its handler has returned."""


class Parcel(NamedTuple):
    """A message as it travels."""

    receiver: str
    kind: str
    number: int  # on its link, counted from 1
    data: bytes


@dataclass
class Deed:
    """What came of one handler."""

    parcels: list[Parcel] = field(default_factory=list)
    timers: dict[str, float | None] = field(default_factory=dict)  # seconds from now; None: called off
    seconds: float = 0.0  # of work, on a device of slowness 1
    result: Tree | None = None  # of a worker that has ended


@dataclass
class Outgoing:
    """How many messages a worker has sent on each of its links, and who it is on the wire."""

    index: int
    most_bytes: int
    numbers: dict[str, int] = field(default_factory=dict)

    def parcel(self, receiver: str, kind: str, body: Tree, layout: Layout | None) -> Parcel:
        number = self.numbers.get(receiver, 0) + 1
        data = encoded(kind, body, number, self.index, layout, self.most_bytes)
        self.numbers[receiver] = number
        return Parcel(receiver, kind, number, data)


class Post:
    """Good for one call of a handler. Messages are bytes as soon as `send` returns: later changes do not reach them."""

    def __init__(self, name: str, neighbours: tuple[str, ...], timers: Sequence[str], outgoing: Outgoing) -> None:
        self.name, self.neighbours = name, neighbours
        self._timers, self._outgoing, self._deed = timers, outgoing, Deed()
        self._closed = ""

    def send(self, receiver: str, kind: str, body: Tree | None = None, layout: Layout | None = None) -> None:
        """A message to a neighbour: a tree of tensors; numbers and bools travel as tensors without axes.

        `layout` packs tensors (docs/wire.md); without it they travel as they are.
        """
        self._check()
        if receiver not in self.neighbours:
            raise ConfigError(
                f"{self.name}: {receiver!r} is none of its neighbours ({', '.join(self.neighbours) or 'it has none'})."
                f"{did_you_mean(receiver, self.neighbours)} Send to post.neighbours, or draw another topology."
            )
        self._deed.parcels.append(self._outgoing.parcel(receiver, kind, body or {}, layout))

    def send_all(self, kind: str, body: Tree | None = None) -> None:
        """The same to every neighbour."""
        for neighbour in self.neighbours:
            self.send(neighbour, kind, body)

    def timer(self, name: str, seconds: float) -> None:
        """Set a timer, or set it anew: when it runs out, timers()[name] is called."""
        self._check()
        if name not in self._timers:
            raise ConfigError(
                f"{self.name}: nobody hears the timer {name!r}.{did_you_mean(name, self._timers)} Add it to timers()."
            )
        if not 0 <= seconds < float("inf"):
            raise ConfigError(f"{self.name}: the timer {name!r} in {seconds} seconds. Give a number from 0 on.")
        self._deed.timers[name] = float(seconds)

    def cancel(self, name: str) -> None:
        """Call a timer off; one that is not set is left alone."""
        self._check()
        self._deed.timers[name] = None

    def spend(self, seconds: float) -> None:
        """Say how long the work of this handler takes on a device of slowness 1: in virtual time it acts only then.

        Real time passes by itself: elsewhere this does nothing.
        """
        self._check()
        if not 0 <= seconds < float("inf"):
            raise ConfigError(f"{self.name}: work of {seconds} seconds. Give a number from 0 on.")
        self._deed.seconds += float(seconds)

    def end(self, result: Tree | None = None) -> None:
        """The worker is done, and this is its result. What it sent is still delivered; it hears nothing more."""
        self._check()
        self._deed.result = tensors(result or {}, "result")
        self._closed = "after its end"

    @property
    def ended(self) -> bool:
        """Has the worker ended in this handler?"""
        return self._deed.result is not None

    def _check(self) -> None:
        if self._closed:
            raise ClosedPostError(f"{self.name}: acts {self._closed}. Do everything before `end`, in a handler.")

    def close(self) -> Deed:
        """The handler has returned: what it asked for. A post that somebody has kept does nothing more."""
        self._closed = self._closed or "when its handler has returned"
        return self._deed
