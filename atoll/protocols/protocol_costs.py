"""What a run of a protocol took: on average, of a client like all others, and of those who do something for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from atoll.protocols.in_process import Transcript

_Step = Mapping[int, float] | Mapping[int, int]


class ProtocolCosts(NamedTuple):
    """Bytes and processor seconds.

    A mean over clients says what is sent in all, and not how long a round takes: where one client deals a key and two
    decrypt, all others wait for them. So these are kept apart: `own` is what every client does, `role` what the server
    asks some of those for who are there. Of a role's step the busiest counts; steps are one after the other.
    """

    up: float  # of one client on average, roles included
    down: float
    client_seconds: float
    server_seconds: float  # in all
    own_up: float
    own_down: float
    own_seconds: float
    role_up: float = 0.0
    role_down: float = 0.0
    role_seconds: float = 0.0

    @classmethod
    def nothing(cls) -> ProtocolCosts:
        return cls(*[0.0] * len(QUANTITIES))

    @classmethod
    def read(cls, values: Sequence[float]) -> ProtocolCosts:
        """From a list of them; an earlier version wrote the first four."""
        return cls(*values) if len(values) > 4 else cls(*values, *values[:3])

    @classmethod
    def of(cls, log: Transcript, clients: int) -> ProtocolCosts:
        """As they were counted."""
        roles = role_steps(log)
        counted: tuple[Sequence[_Step], ...] = (log.up_bytes, log.down_bytes, log.client_seconds)
        up, down, seconds = (sum(sum(step.values()) for step in steps) / max(1, clients) for steps in counted)
        own = (float(sum(_mean(step) for i, step in enumerate(steps) if i not in roles)) for steps in counted)
        role = (float(sum(max(steps[i].values(), default=0) for i in roles)) for steps in counted)
        return cls(up, down, seconds, sum(log.server_seconds), *own, *role)


QUANTITIES = ProtocolCosts._fields


def role_steps(log: Transcript) -> list[int]:
    """The steps in which the server asks fewer clients than answered the last time that it asked all."""
    heard, found = 0, []
    for step, (asked, answered) in enumerate(zip(log.down_bytes, log.up_bytes, strict=False)):
        if len(asked) < heard:
            found.append(step)
        else:
            heard = len(answered)
    return found


def _mean(step: _Step) -> float:
    return fmean(step.values()) if step else 0.0
