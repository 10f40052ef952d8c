"""A worker on stage: calls its handlers, refuses what it has none for, and keeps what it asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from atoll.messages.frames import MOST_BYTES, difference
from atoll.messages.post import Deed, Outgoing, Post
from atoll.messages.worker import Mail, Worker
from atoll.messages.worker_topology import WorkerTopology
from atoll.schema import did_you_mean
from atoll.tree import Tree


class Refused(NamedTuple):
    """A message that no handler saw."""

    receiver: str
    sender: str
    kind: str
    why: str

    def __str__(self) -> str:
        return f"{self.receiver} refused {self.kind!r} of {self.sender}: {self.why}"


class Actor:
    """One worker with its name and its links, whoever drives it."""

    def __init__(self, name: str, worker: Worker, topology: WorkerTopology, most_bytes: int = MOST_BYTES) -> None:
        self.name, self.worker = name, worker
        self.neighbours = topology.neighbours(name)
        self.handlers, self.timers, self.bodies = worker.handlers(), worker.timers(), worker.bodies()
        self.outgoing = Outgoing(topology.index(name), most_bytes)
        self.result: Tree | None = None
        self.refused: list[Refused] = []

    @property
    def ended(self) -> bool:
        return self.result is not None

    def begin(self) -> Deed:
        return self._act(self.worker.begin, "begin")

    def deliver(self, mail: Mail) -> Deed | None:
        """What its handler asks for; None where the message was refused."""
        why = self._objection(mail)
        if why:
            self.refused.append(Refused(self.name, mail.sender, mail.kind, why))
            return None
        return self._act(lambda post: self.handlers[mail.kind](post, mail), f"{mail.kind!r} of {mail.sender}")

    def alarm(self, timer: str) -> Deed:
        return self._act(self.timers[timer], f"timer {timer!r}")

    def lose(self, neighbour: str, why: str) -> Deed:
        return self._act(lambda post: self.worker.gone(post, neighbour, why), f"{neighbour} is gone")

    def _objection(self, mail: Mail) -> str:
        if mail.kind not in self.handlers:
            return f"it has no handler of this name.{did_you_mean(mail.kind, self.handlers)}"
        like = self.bodies.get(mail.kind)
        return "" if like is None else difference(mail.body, like)

    def _act(self, handler: Callable[[Post], None], what: str) -> Deed:
        post = Post(self.name, self.neighbours, tuple(self.timers), self.outgoing)
        try:
            handler(post)
        except Exception as e:
            e.add_note(f"in worker {self.name!r}, at {what}")
            raise
        finally:
            deed = post.close()
        if deed.result is not None:
            self.result = deed.result
        return deed
