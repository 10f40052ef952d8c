"""Where the time of a round goes, as OARF decomposes it (its Figure 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from atoll.clock.timeline import Timeline


class RoundParts(NamedTuple):
    """Virtual seconds of one round: of clients, means over those whose work counts; NaN where nobody's does.

    The server sends until its last client has received, and is idle from then on.
    """

    federated: float  # from the server's first byte until it waits no longer
    receive: float
    train: float
    compress: float  # clock.seconds_to_compress
    encrypt: float  # what a protocol of [secure] takes, by its cost model
    send: float
    idle: float
    server_send: float
    server_idle: float

    @property
    def overhead(self) -> float:
        """OARF's framework overhead: the share of the time in which a client does not train."""
        return 1 - self.train / self.federated

    @classmethod
    def of(cls, t: Timeline) -> RoundParts:
        who = t.counted
        if not who.any():
            return cls(t.seconds, *[np.nan] * 8)
        received, sent, arrived = t.received[who], t.sent[who], t.arrived[who]
        spans = (received - t.begins[who], sent - received, arrived - sent, t.end - arrived)
        down, train, up, idle = (float(x.mean()) for x in spans)
        seconds = (t.compressed, t.encrypted, t.joint)
        compress, encrypt, joint = (0.0 if x is None else float(x[who].mean()) for x in seconds)
        last, work = float(received.max()), (train - compress - encrypt, compress, encrypt + joint)
        server = (last - t.start, t.end - last) if t.began is None else (np.nan, np.nan)  # it sends all the time
        return cls(t.seconds, down, *work, up, idle - joint, *server)

    @classmethod
    def mean(cls, rounds: Sequence[Timeline]) -> RoundParts:
        """Over rounds; those in which nobody counts have a federated time and nothing else."""
        parts = np.array([cls.of(t) for t in rounds])
        return cls(*(float(np.nanmean(x)) if np.isfinite(x).any() else np.nan for x in parts.T))
