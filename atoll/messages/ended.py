"""What is left when the workers have ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from atoll.messages.actor import Refused
from atoll.tree import Tree

Fate = Literal["delivered", "duplicate", "dropped", "unread", "refused"]


class Delivery(NamedTuple):
    """One message of a simulated run; `arrived` is infinite where it never did."""

    sender: str
    receiver: str
    kind: str
    number: int
    bytes: int
    sent: float
    arrived: float
    fate: Fate


@dataclass(frozen=True)
class Ended:
    """Results by worker; who has none, and why; what nobody would read; and, of a simulated run, every message."""

    results: dict[str, Tree]
    gone: dict[str, str] = field(default_factory=dict)
    refused: tuple[Refused, ...] = ()
    seconds: float = 0.0  # of virtual time in a simulated run, else by the clock on the wall
    log: tuple[Delivery, ...] = ()

    @property
    def bytes(self) -> int:
        """Of all messages of a simulated run that were sent; what a fault sent twice counts once."""
        return sum(line.bytes for line in self.log if line.fate != "duplicate")
