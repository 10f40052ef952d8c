"""A protocol whose messages somebody changes on their way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from torch import Tensor

from atoll.core import Client, Message, Protocol, Server
from atoll.tree import Tree

Change = Callable[[int, int, Message], Message]  # of a step, a client and a message


def unchanged(step: int, id: int, message: Message) -> Message:
    return message


@dataclass(frozen=True)
class Tampered(Protocol):
    """`down` changes what the server sends, `up` what clients answer."""

    inner: Protocol
    down: Change = unchanged
    up: Change = unchanged

    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        return self.inner.client(id, own, key)

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        server = self.inner.server(ids, key)
        outbox = next(server)
        for step in count():
            inbox = yield {id: self.down(step, id, message) for id, message in outbox.items()}
            try:
                outbox = server.send({id: self.up(step, id, message) for id, message in inbox.items()})
            except StopIteration as end:
                return end.value
        raise AssertionError


def at(kind: str, change: Callable[[Tree], Tree], id: int | None = None) -> Change:
    """Changes the bodies of messages of one kind, of one client or of all."""

    def changed(step: int, client: int, message: Message) -> Message:
        hit = message.kind == kind and id in (None, client)
        return Message(kind, change(message.body)) if hit else message

    return changed
