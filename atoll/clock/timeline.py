"""What happens when in one round: FedEval's four timestamps of each client, and who is lost or late."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.clock.quantities import Floats, Ints

COUNTED, LATE, DROPPED, ABSENT = range(4)
STATUS = ("counted", "late", "dropped", "absent")  # absent: could not be reached when the round began


class Overhead(NamedTuple):
    """What a protocol around the update takes: of each client, of the server, and of those who do something for all."""

    up: float = 0.0  # bytes, in place of the update's
    down: float = 0.0  # bytes, beside the model's
    client_seconds: float = 0.0  # of a client with slowness 1
    server_seconds: float = 0.0  # when the last message is there
    round_trips: int = 0  # between server and client, beside the one that brings model and update
    role_up: float = 0.0  # bytes and seconds of whoever deals a key or decrypts a sum, while all others wait
    role_down: float = 0.0
    role_seconds: float = 0.0

    def around(self, down: float | Floats) -> tuple[float | Floats, float]:
        """Bytes to and from each client, where it would be sent so many without the protocol."""
        return down + self.down, self.up


@dataclass(frozen=True, eq=False)
class Timeline:
    """One round in virtual seconds. What never happened is inf."""

    start: float  # when the server sends, to all at once
    end: float  # when it waits no longer
    ids: Ints
    steps: Ints
    received: Floats  # by the client: the whole model
    sent: Floats  # by the client: the first byte of its update
    arrived: Floats  # at the server: the last byte
    status: NDArray[np.int8]
    void: bool  # too few reported, so nobody counts
    down: float | Floats  # bytes of each client, at most if that is not known yet; (C,) where they differ
    up: float | Floats
    seconds_per_step: float
    seconds_to_compress: float = 0.0
    compressed: Floats | None = None  # seconds of each client, between training and sending, before it encrypts
    encrypted: Floats | None = None  # seconds of each client for a protocol, between training and sending
    overhead: Overhead | None = None  # of that protocol
    began: Floats | None = None  # when each client was sent its model; None: all of them at the start
    joint: Floats | None = None  # seconds of each client in a protocol that begins when all have reported

    @property
    def begins(self) -> Floats:
        """When each client was sent its model."""
        return np.full(len(self.ids), self.start) if self.began is None else self.began

    @property
    def counted(self) -> NDArray[np.bool_]:
        return np.asarray(self.status == COUNTED)

    @property
    def seconds(self) -> float:
        """FedEval's federated time of the round."""
        return self.end - self.start

    def with_lengths(self, ids: Ints, down: Ints | None, up: Ints | None) -> Timeline:
        """With the bytes that these clients were really sent and sent, if they are those who count; None: as it is.

        Others keep theirs, and so do all timestamps.
        """
        places, order = np.flatnonzero(self.counted), np.argsort(ids, kind="stable")
        places = places[np.argsort(self.ids[places], kind="stable")]
        if not np.array_equal(self.ids[places], ids[order]):
            return self
        real: dict[str, Any] = {}
        for name, lengths in (("down", down), ("up", up)):
            if lengths is not None:
                real[name] = np.array(np.broadcast_to(getattr(self, name), len(self.ids)), np.float64)
                real[name][places] = lengths[order]
        return replace(self, **real)

    def summary(self) -> dict[str, Any]:
        """What the round's line of the record says."""
        counts = np.bincount(self.status, minlength=len(STATUS)).tolist()
        said: dict[str, Any] = {"start": self.start, "end": self.end}
        said |= {name: count for name, count in zip(STATUS, counts, strict=True) if count or name == "counted"}
        late = self.ids[self.status == LATE]
        return said | ({"late_ids": late.tolist()} if len(late) else {}) | ({"void": True} if self.void else {})

    def as_line(self, round_number: int) -> dict[str, Any]:
        """What the run's file of timestamps says of round `round_number`, counted from 1."""
        times = {name: _written(getattr(self, name)) for name in _TIMES}
        facts = {name: _plain(getattr(self, name)) for name in _FACTS}
        whose = {"ids": self.ids.tolist(), "steps": self.steps.tolist(), "status": self.status.tolist()}
        line = {"round": round_number, **facts, **whose, **times}
        if self.compressed is not None:
            line["compressed"] = self.compressed.tolist()
        if self.began is not None:
            line["began"] = self.began.tolist()
        if self.joint is not None:
            line["joint"] = self.joint.tolist()
        if self.encrypted is not None:
            line["encrypted"] = self.encrypted.tolist()
        return line if self.overhead is None else line | {"overhead": list(self.overhead)}

    @classmethod
    def from_line(cls, line: Mapping[str, Any]) -> Timeline:
        """What `as_line` wrote."""
        ids, steps = (np.array(line[name], np.int64) for name in ("ids", "steps"))
        columns: dict[str, Any] = {
            name: np.array([np.inf if x is None else x for x in line[name]], np.float64) for name in _TIMES
        }
        columns |= {name: np.array(x) if isinstance(x := line[name], list) else x for name in _FACTS}
        columns |= {name: np.array(line[name], np.float64) for name in _SOMETIMES if name in line}
        if "overhead" in line:
            columns["overhead"] = Overhead(*line["overhead"])
        return cls(ids=ids, steps=steps, status=np.array(line["status"], np.int8), **columns)


_TIMES = ("received", "sent", "arrived")
_SOMETIMES = ("compressed", "began", "encrypted", "joint")
_FACTS = ("start", "end", "down", "up", "seconds_per_step", "seconds_to_compress", "void")


def _plain(fact: Any) -> Any:
    return fact.tolist() if isinstance(fact, np.ndarray) else fact


def _written(times: Floats) -> list[float | None]:
    return [x if np.isfinite(x) else None for x in times.tolist()]


def _read(times: list[float | None]) -> Floats:
    return np.array([np.inf if x is None else x for x in times], np.float64)
