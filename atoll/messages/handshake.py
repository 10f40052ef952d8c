"""The first word on a connection: who one is, in which run, and what one has already.

The caller says "atoll.hello", the other answers with its own or with "atoll.refused" and a number that says why. Both
must have the same topology. An incarnation is a random number of a process: one that was started again has lost the
worker's state, and is not taken for the one that was there.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from atoll.errors import ProtocolError, WireError
from atoll.messages.worker_topology import WorkerTopology
from atoll.tree import Tree
from atoll.wire import Layout, Payload, decode, encode

HELLO, REFUSED, ACK = "atoll.hello", "atoll.refused", "atoll.ack"
BYE, FAILED, INTERRUPTED = "atoll.bye", "atoll.failed", "atoll.interrupted"
LAST_WORDS = {FAILED: "it failed", INTERRUPTED: "it was interrupted"}
HELLO_BYTES = 1 << 10  # from whoever it may be
_WHY = {
    1: "it has another topology",
    2: "it does not expect that worker",
    3: "it knows that worker as another process, which was lost with its state",
    4: "the certificate is of another worker",
    5: "it has given that worker up",
}
(OTHER_TOPOLOGY, NOT_EXPECTED, RESTARTED, OTHER_CERTIFICATE, GIVEN_UP) = _WHY


class RefusedConnectionError(ProtocolError):
    """A connection that will not be better at the next attempt."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(f"refused: {_WHY.get(code, 'for a reason that this side does not know')}")


class Hello(NamedTuple):
    """What one side says of itself."""

    sender: int
    incarnation: int
    received: int  # the last number that it has of the other's messages


@dataclass
class Introduction:
    """One worker's first words, and what it takes for those of another."""

    topology: WorkerTopology
    index: int

    def __post_init__(self) -> None:
        self.incarnation = secrets.randbits(62) + 1
        self.digest = torch.from_numpy(np.frombuffer(self.topology.digest(), np.uint8).copy())

    def hello(self, received: int) -> bytes:
        numbers = {"incarnation": torch.tensor(self.incarnation), "received": torch.tensor(received)}
        return word(HELLO, 0, self.index, {"topology": self.digest, **numbers})

    def read(self, data: bytes) -> Hello:
        """A hello, or an error that says what it is instead."""
        payload = decode(data, HELLO_BYTES)
        if payload.kind == REFUSED:
            raise RefusedConnectionError(payload.round)
        body = payload.tree
        whole = {"incarnation": torch.int64, "received": torch.int64}
        shapes_hold = payload.kind == HELLO and body.keys() == {"topology", *whole}
        shapes_hold = shapes_hold and all(body[n].dtype == t and body[n].dim() == 0 for n, t in whole.items())
        if not shapes_hold or int(body["received"]) < 0:
            raise WireError(f"{payload.kind}: is no hello. Is this another program's port?")
        if not torch.equal(body["topology"], self.digest):
            raise RefusedConnectionError(OTHER_TOPOLOGY)
        return Hello(payload.sender, int(body["incarnation"]), int(body["received"]))


def word(kind: str, number: int, sender: int, body: Tree | None = None) -> bytes:
    """A payload of the transport's own."""
    return encode(Layout.of(body or {}), body or {}, kind=kind, round=number, sender=sender)


def checked(payload: Payload, sender: int) -> Payload:
    """A payload of whom it should be from."""
    if payload.sender != sender:
        raise ProtocolError(f"a message of worker {payload.sender} came on the link of worker {sender}.")
    return payload
