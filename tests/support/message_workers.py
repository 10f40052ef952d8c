"""Small workers for tests of the ways to run them. Importable, so that processes of their own can make them."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from atoll.messages import Handler, Mail, Post, Worker
from atoll.tree import Tree


@dataclass
class Adder(Worker):
    """Asks every neighbour for a number so many times, and ends with the sum of each; goes on without who is gone."""

    times: int = 2
    sums: dict[str, int] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    def begin(self, post: Post) -> None:
        post.send_all("ask", {"turn": 0})

    def handlers(self) -> Mapping[str, Handler]:
        return {"number": self.on_number}

    def bodies(self) -> Mapping[str, Tree]:
        return {"number": {"turn": 0, "is": torch.zeros(3)}}

    def on_number(self, post: Post, mail: Mail) -> None:
        turn = int(mail.body["turn"])
        if turn != self.turns.get(mail.sender, 0):
            return  # one that came before
        self.turns[mail.sender] = turn + 1
        self.sums[mail.sender] = self.sums.get(mail.sender, 0) + int(mail.body["is"].sum())
        if turn + 1 < self.times:
            post.send(mail.sender, "ask", {"turn": turn + 1})
        self.finish(post)

    def gone(self, post: Post, name: str, why: str) -> None:
        self.lost.append(name)
        self.finish(post)

    def finish(self, post: Post) -> None:
        if all(self.turns.get(name, 0) == self.times or name in self.lost for name in post.neighbours):
            for name in post.neighbours:
                if name not in self.lost:
                    post.send(name, "stop")
            post.end({"sums": dict(self.sums), "lost": len(self.lost)})


@dataclass
class Answerer(Worker):
    """Says its number, until it is told to stop; dies (kill -9) when it is asked for the turn `dies`."""

    number: int = 1
    dies: int = -1
    seconds: float = 0.0  # that it takes to answer

    def handlers(self) -> Mapping[str, Handler]:
        return {"ask": self.on_ask, "stop": lambda post, mail: post.end()}

    def on_ask(self, post: Post, mail: Mail) -> None:
        if int(mail.body["turn"]) == self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        post.spend(self.seconds)
        post.send(mail.sender, "number", {"turn": mail.body["turn"], "is": torch.full((3,), float(self.number))})


def adder_or_answerer(name: str) -> Worker:
    """The server adds; of its clients, client-i says i + 1."""
    return Adder() if name == "server" else Answerer(int(name.removeprefix("client-")) + 1)


def with_one_that_dies(name: str) -> Worker:
    """The same, and client-1 is killed when it is asked for the second time."""
    return Answerer(2, dies=1) if name == "client-1" else adder_or_answerer(name)


def with_one_that_fails(name: str) -> Worker:
    return Failing() if name == "client-1" else adder_or_answerer(name)


def waiting_for_who_fails(name: str) -> Worker:
    """The server only waits; its clients fail before they have said a word."""
    return Silent() if name == "server" else Failing(at_once=True)


@dataclass
class Failing(Worker):
    """Raises when it is asked, or before that."""

    at_once: bool = False

    def begin(self, post: Post) -> None:
        if self.at_once:
            raise ValueError("out of paper")

    def handlers(self) -> Mapping[str, Handler]:
        return {"ask": self.on_ask}

    def on_ask(self, post: Post, mail: Mail) -> None:
        raise ValueError("out of paper")


@dataclass
class Silent(Worker):
    """Never says a word, and never ends."""

    def handlers(self) -> Mapping[str, Handler]:
        return {}

    def gone(self, post: Post, name: str, why: str) -> None:
        """It does not matter."""
