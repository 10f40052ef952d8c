"""Numbers on a link: each message is handed over at most once, and what a lost connection took is sent again."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from atoll.errors import ProtocolError


@dataclass
class SeenNumbers:
    """Which messages have arrived, in whatever order."""

    all_up_to: int = 0
    beyond: set[int] = field(default_factory=set)

    def add(self, number: int) -> bool:
        """Whether it is new."""
        if number <= self.all_up_to or number in self.beyond:
            return False
        self.beyond.add(number)
        while self.all_up_to + 1 in self.beyond:
            self.all_up_to += 1
            self.beyond.remove(self.all_up_to)
        return True


@dataclass
class LinkNumbers:
    """One side of a link that may lose its connection and get another: frames are kept until the peer has them.

    On a connection frames come in order, so that a number ahead of the next one is no accident.
    """

    received: int = 0
    sent: int = 0
    kept: deque[tuple[int, bytes]] = field(default_factory=deque)  # not yet acknowledged, in order

    def keep(self, number: int, frame: bytes) -> None:
        """A new frame, which is to be sent."""
        assert number == self.sent + 1, "numbers are given out one by one"
        self.sent = number
        self.kept.append((number, frame))

    def take(self, number: int) -> bool:
        """Whether a frame that came is new; one that came before is left out."""
        if number > self.received + 1:
            raise ProtocolError(f"message {number} came where {self.received + 1} was due. Nothing may be left out.")
        new = number == self.received + 1
        self.received = max(self.received, number)
        return new

    def acknowledge(self, number: int) -> None:
        """The peer has all up to this one."""
        if number > self.sent:
            raise ProtocolError(f"message {number} is acknowledged, and only {self.sent} were sent.")
        while self.kept and self.kept[0][0] <= number:
            self.kept.popleft()

    def after(self, number: int) -> list[tuple[int, bytes]]:
        """What the peer does not have."""
        return [(n, frame) for n, frame in self.kept if n > number]

    def forget(self) -> None:
        """Nobody is there to have them."""
        self.kept.clear()
