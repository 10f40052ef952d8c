"""Protocols of several messages, without I/O: the same generators ride on a loop, a test or a network.

A client's generator gets messages and yields replies; a server's yields an outbox and gets the inbox. A client that
dropped out is not in the inbox.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from typing import TypeAlias

from torch import Tensor

from atoll.core.requests import Message
from atoll.tree import Tree
from atoll.wire import Layout

Client: TypeAlias = Generator[Message | None, Message, None]
Server: TypeAlias = Generator[Mapping[int, Message], Mapping[int, Message], Tree]


class Protocol(ABC):
    """Two roles that exchange named messages until the server has its result."""

    @abstractmethod
    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        """One client, with what it holds. Begins by waiting: `message = yield`; then `message = yield reply`."""

    @abstractmethod
    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        """The server: `inbox = yield {id: message}`; returns its result, or raises a ProtocolError."""

    def layout(self, message: Message) -> Layout:
        """How a message travels: its tensors as they are, unless the protocol packs them."""
        return Layout.of(message.body)

    def faults(self, inbox: Mapping[int, Message]) -> Mapping[int, str]:
        """Whose answers of a step the server cannot use, and why: a driver between strangers takes them as lost."""
        return {}

    def enrol(self, ids: Sequence[int], key: Tensor) -> Mapping[int, Tree]:
        """What each client gets from whom all trust before the first message, in addition to what it holds."""
        return {}
