"""A protocol around another, with somebody on the line who reads and changes messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from atoll.core import Client, Message, Protocol, Server
from atoll.tree import Tree
from atoll.wire import Layout

Change = Callable[[int, int, Message], Message]  # of a step, a client and what it is sent, or sends


def unchanged(step: int, id: int, message: Message) -> Message:
    return message


@dataclass(frozen=True)
class Intercepted(Protocol):
    """The same parties; every message goes through `down`, to a client, or `up`, to the server."""

    inner: Protocol
    down: Change = unchanged
    up: Change = unchanged

    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        return self.inner.client(id, own, key)

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        server, step = self.inner.server(ids, key), 0
        try:
            outbox = next(server)
            while True:
                inbox = yield {id: self.down(step, id, message) for id, message in outbox.items()}
                outbox = server.send({id: self.up(step, id, message) for id, message in inbox.items()})
                step += 1
        except StopIteration as end:
            result: Tree = end.value
            return result

    def layout(self, message: Message) -> Layout:
        return self.inner.layout(message)

    def faults(self, inbox: Mapping[int, Message]) -> Mapping[int, str]:
        return self.inner.faults(inbox)

    def enrol(self, ids: Sequence[int], key: Tensor) -> Mapping[int, Tree]:
        return self.inner.enrol(ids, key)
