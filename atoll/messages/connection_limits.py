"""How long a worker waits for its neighbours, and how much it takes from them."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.errors import ConfigError
from atoll.messages.frames import MOST_BYTES


@dataclass(frozen=True)
class ConnectionLimits:
    """Bounds in seconds and bytes."""

    joining: float = 30.0  # for the first connection
    patience: float = 5.0  # without a connection, before a neighbour is given up; and for a goodbye
    heartbeat: float = 1.0  # after so long without a word one says something
    silence: float = 10.0  # a connection on which nothing came for so long is broken
    handshake: float = 5.0
    most_bytes: int = MOST_BYTES  # of one message
    inbox_bytes: int = 1 << 28  # waiting for the worker: no more is read beyond that

    def __post_init__(self) -> None:
        wrong = [name for name, x in vars(self).items() if not 0 < x < float("inf")]
        if wrong:
            raise ConfigError(f"limits.{wrong[0]}: must be above 0 and finite (got {vars(self)[wrong[0]]}).")
        if self.silence <= self.heartbeat:
            raise ConfigError(
                f"limits.silence: {self.silence:g} seconds, but heartbeats come every {self.heartbeat:g}. "
                "Allow for a few."
            )


USUAL_LIMITS = ConnectionLimits()
