"""The contract: what a handler may ask for, what is refused, and in which words."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from atoll.errors import ConfigError, ProtocolError, WireError
from atoll.messages import Actor, ClosedPostError, Mail, Post, Worker, WorkerTopology, run
from atoll.messages.worker import Handler
from atoll.wire import decode
from tests.support.message_workers import Adder, Answerer, Silent

PAIR = WorkerTopology.complete(["a", "b"])


@dataclass
class Does(Worker):
    """Does one thing when it begins, and hears messages called "x"."""

    what: Callable[[Post], None]
    heard: list[Mail] = field(default_factory=list)

    def begin(self, post: Post) -> None:
        self.what(post)

    def handlers(self) -> dict[str, Handler]:
        return {"x": lambda post, mail: self.heard.append(mail), "stop": lambda post, mail: post.end()}

    def timers(self) -> dict[str, Callable[[Post], None]]:
        return {"late": lambda post: post.end()}

    def bodies(self) -> dict[str, dict]:
        return {"stop": {"by": torch.zeros(2), "at": 0}}


def did(what: Callable[[Post], None]) -> Actor:
    actor = Actor("a", Does(what), PAIR)
    actor.deed = actor.begin()
    return actor


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        (lambda post: post.send("c", "x"), ConfigError, r"a: 'c' is none of its neighbours \(b\)"),
        (lambda post: post.send("b", "Loud"), WireError, "kind: 'Loud'"),
        (lambda post: post.send("b", "atoll.bye"), WireError, "are the transport's"),
        (lambda post: post.send("b", "x", {"name": "Ada"}), WireError, "x/name: a str does not travel"),
        (lambda post: post.send("b", "x", {"in": {"all": [1]}}), WireError, "x/in/all: a list does not travel"),
        (lambda post: post.send("b", "x", {"big": 1 << 63}), WireError, "a int does not travel"),
        (lambda post: post.send("b", "x", {"a/b": 1}), WireError, "a name with '/'"),
        (lambda post: post.timer("lte", 1), ConfigError, "nobody hears the timer 'lte'. Did you mean 'late'"),
        (lambda post: post.timer("late", -1), ConfigError, "in -1 seconds"),
        (lambda post: post.spend(float("nan")), ConfigError, "work of nan seconds"),
        (lambda post: (post.end(), post.send("b", "x")), ClosedPostError, "a: acts after its end"),
        (lambda post: (post.end(), post.end()), ClosedPostError, "a: acts after its end"),
        (lambda post: post.end({"why": "done"}), WireError, "result/why: a str does not travel"),
    ],
)
def test_what_cannot_be_done_is_refused_where_it_is_asked(what, error, words) -> None:
    with pytest.raises(error, match=words) as caught:
        did(what)
    assert caught.value.__notes__ == ["in worker 'a', at begin"]


def test_a_post_that_somebody_has_kept_does_nothing_more() -> None:
    posts: list[Post] = []
    did(posts.append)
    with pytest.raises(ClosedPostError, match="when its handler has returned"):
        posts[0].send("b", "x")


def test_a_message_is_bytes_when_send_returns() -> None:
    numbers = torch.zeros(2)

    def send(post: Post) -> None:
        post.send("b", "x", {"w": numbers, "round": 3, "on": True, "share": 0.5})
        numbers.add_(1)

    (parcel,) = did(send).deed.parcels
    payload = decode(parcel.data)
    assert (payload.kind, payload.round, payload.sender) == ("x", 1, 0)
    assert payload.tree["w"].tolist() == [0, 0]
    assert [payload.tree[name].dtype for name in ("round", "on", "share")] == [torch.int64, torch.bool, torch.float64]


def test_messages_are_numbered_on_each_link() -> None:
    actor = Actor(
        "a", Does(lambda post: [post.send_all("x") for _ in range(2)]), WorkerTopology.complete(["a", "b", "c"])
    )
    assert [(p.receiver, p.number) for p in actor.begin().parcels] == [("b", 1), ("c", 1), ("b", 2), ("c", 2)]


def test_a_message_that_is_too_long_is_refused_by_its_sender() -> None:
    with pytest.raises(WireError, match=r"x: 4\d+ bytes; 1000 are allowed"):
        Actor("a", Does(lambda post: post.send("b", "x", {"w": torch.zeros(1000)})), PAIR, most_bytes=1000).begin()


@pytest.mark.parametrize(
    ("mail", "why"),
    [
        (Mail("b", "stpo", {}), "it has no handler of this name. Did you mean 'stop'?"),
        (Mail("b", "stop", {}), "at is missing"),
        (Mail("b", "stop", {"by": torch.zeros(2), "at": torch.tensor(0), "c": torch.ones(1)}), "c is too much"),
        (Mail("b", "stop", {"by": torch.zeros(3), "at": torch.tensor(0)}), r"by is (3,) of torch.float32 where (2,)"),
        (Mail("b", "stop", {"by": torch.zeros(2), "at": torch.tensor(0.0)}), "at is () of torch.float32 where ()"),
    ],
)
def test_messages_of_unknown_names_and_bodies_of_another_shape_reach_no_handler(mail: Mail, why: str) -> None:
    actor = did(lambda post: None)
    assert actor.deliver(mail) is None
    assert not actor.ended
    assert why in actor.refused[0].why
    assert str(actor.refused[0]).startswith(f"a refused {mail.kind!r} of b: ")


def test_a_body_of_the_right_shape_is_handed_over() -> None:
    actor = did(lambda post: None)
    actor.deliver(Mail("b", "stop", {"by": torch.ones(2), "at": torch.tensor(7)}))
    assert actor.ended
    assert actor.refused == []


def test_who_does_not_say_what_to_do_without_a_neighbour_fails() -> None:
    with pytest.raises(ProtocolError, match=r"a: 'b' is gone \(hung up\). Write gone"):
        did(lambda post: None).lose("b", "hung up")


def test_a_run_where_nothing_more_will_happen_says_who_waits_and_what_was_refused() -> None:
    with pytest.raises(ProtocolError, match=r"nothing more will happen. Not ended: a, b. b refused 'ask' of a: it has"):
        run({"a": Adder(), "b": Silent()}, PAIR)


def test_workers_and_topology_name_the_same() -> None:
    with pytest.raises(ConfigError, match="'b' is in only one of workers and topology"):
        run({"a": Answerer()}, PAIR)
