"""All parties of a protocol in one process: messages are handed over, counted, and lost where a test wants that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from atoll import rng
from atoll.core import Client, Message, Protocol
from atoll.tree import Tree

Drops = Callable[[int, int], bool]  # of a step and a client: does its answer get lost, and all that follow?


@dataclass
class Transcript:
    """What was sent: one entry for each step, by client."""

    down: list[dict[int, Message]] = field(default_factory=list)
    up: list[dict[int, Message]] = field(default_factory=list)


def run_protocol(
    protocol: Protocol, own: Mapping[int, Tree], key: Tensor, drops: Drops = lambda step, id: False
) -> tuple[Tree, Transcript]:
    """The server's result, and what was sent. `own` is what each client holds, by id."""
    clients = {id: protocol.client(id, held, rng.fold_host(key, id)) for id, held in own.items()}
    for client in clients.values():
        next(client)
    server, transcript = protocol.server(list(own), rng.fold_name(key, "server")), Transcript()
    try:
        outbox = next(server)
        while True:
            transcript.down.append(dict(outbox))
            inbox = _answers(clients, outbox, drops, len(transcript.up))
            transcript.up.append(inbox)
            outbox = server.send(inbox)
    except StopIteration as end:
        result: Tree = end.value
        return result, transcript


def _answers(clients: dict[int, Client], outbox: Mapping[int, Message], drops: Drops, step: int) -> dict[int, Message]:
    """What comes back; who drops out is gone for good."""
    inbox: dict[int, Message] = {}
    for id, message in outbox.items():
        if id in clients and drops(step, id):
            del clients[id]
        if id not in clients:
            continue
        try:
            reply = clients[id].send(message)
        except StopIteration:
            del clients[id]
            continue
        if reply is not None:
            inbox[id] = reply
    return inbox
