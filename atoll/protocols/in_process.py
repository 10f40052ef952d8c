"""All parties of a protocol in one process: messages are handed over, counted, and lost where a test wants that."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from atoll import rng
from atoll.core import Client, Message, Protocol, Server
from atoll.tree import Tree
from atoll.wire import SERVER, decode, encode

Drops = Callable[[int, int], bool]  # of a step and a client: does its answer get lost, and all that follow?


@dataclass
class Transcript:
    """What was sent: one entry for each step, by client. Bytes are there where messages went over the wire.

    Seconds are the processor's, and count encoding with the sender and decoding with the receiver; the server has one
    entry more than there are steps, for what it did when the last answers were there.
    """

    down: list[dict[int, Message]] = field(default_factory=list)
    up: list[dict[int, Message]] = field(default_factory=list)
    down_bytes: list[dict[int, int]] = field(default_factory=list)
    up_bytes: list[dict[int, int]] = field(default_factory=list)
    client_seconds: list[dict[int, float]] = field(default_factory=list)
    server_seconds: list[float] = field(default_factory=list)


def run_protocol(
    protocol: Protocol,
    own: Mapping[int, Tree],
    key: Tensor,
    drops: Drops = lambda step, id: False,
    *,
    over_wire: bool = False,
    round: int = 0,
    keep_messages: bool = True,
    log: Transcript | None = None,
) -> tuple[Tree, Transcript]:
    """The server's result, and what was sent. `own` is what each client holds, by id.

    `over_wire`: every message becomes the bytes of a payload and is read from them again. Without `keep_messages` the
    transcript has only numbers. A `log` that is given is written to, also where the protocol does not come to its end.
    """
    given = protocol.enrol(list(own), rng.fold_name(key, "enrol"))
    clients = {
        id: protocol.client(id, {**given.get(id, {}), **held}, rng.fold_host(key, id)) for id, held in own.items()
    }
    for client in clients.values():
        next(client)
    server = protocol.server(list(own), rng.fold_name(key, "server"))
    transcript = Transcript() if log is None else log
    parties = _Exchanges(protocol, clients, drops, round if over_wire else None, keep_messages, transcript)
    return parties.until_the_end(server)


@dataclass
class _Exchanges:
    """The steps of one run of a protocol."""

    protocol: Protocol
    clients: dict[int, Client]
    drops: Drops
    round: int | None  # None: messages are handed over as they are
    keep_messages: bool
    transcript: Transcript = field(default_factory=Transcript)

    def until_the_end(self, server: Server) -> tuple[Tree, Transcript]:
        log, began = self.transcript, time.process_time()
        try:
            outbox = dict(next(server))
            while True:
                parcels = {id: self._packed(message, SERVER) for id, message in outbox.items()}
                log.server_seconds.append(time.process_time() - began)
                log.down.append(outbox if self.keep_messages else {})
                log.down_bytes.append({id: len(x) for id, x in parcels.items() if isinstance(x, bytes)})
                answers = self._answers(parcels)
                began = time.process_time()
                inbox = {id: self._unpacked(parcel) for id, parcel in answers.items()}
                log.up.append(inbox if self.keep_messages else {})
                outbox = dict(server.send(inbox))
        except StopIteration as end:
            log.server_seconds.append(time.process_time() - began)
            result: Tree = end.value
            return result, log

    def _answers(self, parcels: Mapping[int, Message | bytes]) -> dict[int, Message | bytes]:
        """What comes back; who drops out is gone for good."""
        step, answers, seconds = len(self.transcript.up), {}, {}
        for id, parcel in parcels.items():
            if id in self.clients and self.drops(step, id):
                del self.clients[id]
            if id not in self.clients:
                continue
            began = time.process_time()
            try:
                reply = self.clients[id].send(self._unpacked(parcel))
            except StopIteration:
                del self.clients[id]
                continue
            if reply is not None:
                answers[id] = self._packed(reply, id)
            seconds[id] = time.process_time() - began
        self.transcript.client_seconds.append(seconds)
        self.transcript.up_bytes.append({id: len(x) for id, x in answers.items() if isinstance(x, bytes)})
        return answers

    def _packed(self, message: Message, sender: int) -> Message | bytes:
        if self.round is None:
            return message
        layout = self.protocol.layout(message)
        return encode(layout, message.body, kind=message.kind, round=self.round, sender=sender)

    def _unpacked(self, parcel: Message | bytes) -> Message:
        if not isinstance(parcel, bytes):
            return parcel
        payload = decode(parcel)
        return Message(payload.kind, payload.tree)
