"""The contract of a worker: handlers for named messages, which keep to Python and leave all sending to others.

    begin(post)              once, before any message
    handlers()[kind](post, mail)    for every message, once
    timers()[name](post)     when a timer that was set runs out
    gone(post, name, why)    once for a neighbour that died

A handler reads its mail, changes the worker's own state and says through `post` what is to be done: send, set a timer,
end. It does no I/O, does not wait, does not look at a clock: given the same events, a worker does the same again. Who
drives it (an event heap in virtual time, a process on this machine, a host on a network) is nothing that it can see.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from atoll.errors import ProtocolError
from atoll.messages.post import Post
from atoll.tree import Tree


class Mail(NamedTuple):
    """A message that has arrived: from a neighbour, named, with a tree of tensors."""

    sender: str
    kind: str
    body: Tree


Handler: TypeAlias = Callable[[Post, Mail], None]
Alarm: TypeAlias = Callable[[Post], None]


class Worker(ABC):
    """One party. Its state is its attributes; nobody else reads or writes them."""

    @abstractmethod
    def handlers(self) -> Mapping[str, Handler]:
        """What is done with a message, by its name; messages of other names are refused."""

    def begin(self, post: Post) -> None:
        """Before the first message."""

    def timers(self) -> Mapping[str, Alarm]:
        """What is done when a timer runs out, by its name."""
        return {}

    def bodies(self) -> Mapping[str, Tree]:
        """What bodies look like, by the name of the message: others are refused. Not here: as they come."""
        return {}

    def gone(self, post: Post, name: str, why: str) -> None:
        """A neighbour that did not end will never be heard of again. Unless overridden, that is a failure."""
        raise ProtocolError(f"{post.name}: {name!r} is gone ({why}). Write gone(post, name, why) to go on without it.")
