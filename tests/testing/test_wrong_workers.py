"""The kit passes workers that keep to the contract, and refuses those that do not, each for its own reason."""

import itertools
from collections.abc import Mapping

import pytest

from atoll.errors import ConformanceError
from atoll.messages import Handler, Mail, Post, Worker, WorkerTopology
from atoll.testing import check_worker
from tests.support.message_workers import Adder, Answerer, adder_or_answerer

STAR = WorkerTopology.star("server", ["client-0", "client-1"])


def test_workers_that_keep_to_the_contract_pass() -> None:
    assert len(check_worker(adder_or_answerer, STAR)) == 4


class Counting(Adder):
    """Adds up whatever comes."""

    def on_number(self, post: Post, mail: Mail) -> None:
        self.turns[mail.sender] = self.turns.get(mail.sender, 0) + 1
        self.sums[mail.sender] = self.sums.get(mail.sender, 0) + int(mail.body["is"].sum())
        if self.turns[mail.sender] < self.times:
            post.send(mail.sender, "ask", {"turn": self.turns[mail.sender]})
        self.finish(post)


class ActsAfterItsEnd(Adder):
    def finish(self, post: Post) -> None:
        super().finish(post)
        if post.ended:
            post.send_all("stop")


class InPlace(Adder):
    def on_number(self, post: Post, mail: Mail) -> None:
        mail.body["is"].mul_(1.5)
        super().on_number(post, mail)


class Unsendable(Adder):
    def begin(self, post: Post) -> None:
        post.send_all("ask", {"turn": "first"})


class Misspelt(Adder):
    def finish(self, post: Post) -> None:
        for name in post.neighbours:
            post.send(name, "aks")
        super().finish(post)


class NeverEnds(Adder):
    def finish(self, post: Post) -> None:
        """Forgotten."""


class Fragile(Adder):
    def gone(self, post: Post, name: str, why: str) -> None:
        raise KeyError(name)


CALLS = itertools.count(1)


class Drawn(Answerer):
    """Another number at every call: a state that workers share."""

    def handlers(self) -> Mapping[str, Handler]:
        self.number = next(CALLS)
        return super().handlers()


def made(server: type[Adder], client: type[Answerer] = Answerer):
    def make(name: str) -> Worker:
        return server() if name == "server" else client(int(name.removeprefix("client-")) + 1)

    return make


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (made(Counting), "bears a repeated message"),
        (made(ActsAfterItsEnd), "silent after its end: server: acts after its end"),
        (made(InPlace), "server leaves its mail alone"),
        (made(Unsendable), "messages can travel: ask/turn: a str does not travel"),
        (made(Misspelt), "is understood: found .*no handler of this name"),
        (made(NeverEnds), "comes to its end: workers: nothing more will happen"),
        (made(Fragile), "bears the death of client-0: ends in KeyError"),
        (made(Adder, Drawn), "client-0 does the same twice"),
    ],
    ids=["counts", "after its end", "in place", "unsendable", "misspelt", "never ends", "fragile", "drawn"],
)
def test_workers_that_do_not_are_refused(make, words: str) -> None:
    with pytest.raises(ConformanceError, match=words):
        check_worker(make, STAR)


def test_workers_that_rely_on_hearing_once_may_say_so() -> None:
    assert len(check_worker(made(Counting), STAR, repeats=False)) == 3
