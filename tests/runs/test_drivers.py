"""Drivers answer what rounds ask for: in turn, and on promises that an engine may not be able to keep."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from atoll import tree
from atoll.algorithms.fedavg import FedAvg
from atoll.algorithms.scaffold import Scaffold
from atoll.algorithms.wrappers import Statistics
from atoll.core import (
    ClientStates,
    Engine,
    Exchange,
    Message,
    Outcome,
    Pending,
    Play,
    Request,
    Round,
    Stack,
    Train,
    Trained,
)
from atoll.engines import Loop
from atoll.rounds import Central, Gossip, Recompute
from atoll.runs import drive, on_promises
from atoll.runs.drivers import Asking, Stopwatch
from atoll.testing.harness import Federation, federation
from atoll.testing.problems import network
from atoll.tree import Tree
from tests.support.stateless_engine import StatelessEngine


class Wrapped(Engine):
    """Answers like another; the clients' state is the other's."""

    name = "wrapped"

    def __init__(self, inner: Engine) -> None:
        self.inner, self.notes = inner, []

    def submit(self, request: Request) -> Pending[Any]:
        return self.inner.submit(request)

    def state(self) -> ClientStates:
        return self.inner.state()

    def load(self, pieces: Iterable[tuple[Tensor, Tree]]) -> None:
        self.inner.load(pieces)

    def choice(self) -> dict[str, Any]:
        return {}


class Breaking(Wrapped):
    """Promises something else than what comes, for some of the requests."""

    def __init__(self, inner: Engine, broken: Callable[[int], bool]) -> None:
        super().__init__(inner)
        self.broken = broken
        self.asked: list[Request] = []

    def submit(self, request: Request) -> Pending[Any]:
        self.asked.append(request)
        truth: Trained = self.inner.run(request)
        if not self.broken(len(self.asked) - 1):
            return Pending.done(truth)
        wrong = replace(truth.partial, **_scaled(truth.partial))
        return Pending(replace(truth, partial=wrong, rows=truth.rows + 1), lambda: truth)


def _scaled(partial: Any) -> dict[str, Any]:
    """The fields of a total, or of a stack, twice as large as they should be."""
    if isinstance(partial, Stack):
        return {"updates": partial.updates._replace(value=tree.scale(partial.updates.value, 2.0))}
    return {"value": tree.scale(partial.value, 2.0)}


def played(round: Round | None = None, broken: Callable[[int], bool] | None = None) -> tuple[Federation, list[Outcome]]:
    """Three rounds of SCAFFOLD, or of FedAvg where there is no server."""
    problem = network()
    algorithm: Any = Scaffold(problem.task, 0.1, population=6) if round is None else FedAvg(problem.task, 0.1)
    made = federation(problem, algorithm, Loop, round=round)
    if broken is not None:
        made.engine = Breaking(made.engine, broken)
    return made, [made.run(ids) for ids in ([0, 3, 5], [3, 1], [2, 4, 0])]


def same(a: tuple[Federation, list[Outcome]], b: tuple[Federation, list[Outcome]]) -> None:
    (ours, said), (theirs, truth) = a, b
    assert tree.digest(ours.state) == tree.digest(theirs.state)
    assert tree.digest(ours.rows()) == tree.digest(theirs.rows())
    for x, y in zip(said, truth, strict=True):
        assert torch.equal(x.columns().loss, y.columns().loss)
        assert (x.traffic, x.changed, x.ids.tolist()) == (y.traffic, y.changed, y.ids.tolist())


def recompute() -> Round:
    problem = network()
    return Recompute.around(Central(), Statistics(problem.task), tree.zeros_like(problem.model["buffers"]))


# --------------------------------------------------------------------------------------------- rounds of real clients

ROUNDS: dict[str, Callable[[], Round | None]] = {"central": lambda: None, "gossip": Gossip, "two requests": recompute}


@pytest.mark.parametrize("broken", [(), (0,), (1,), (0, 1, 2)])
@pytest.mark.parametrize("name", ROUNDS)
def test_a_round_whose_promise_is_broken_is_played_again_and_is_the_one_that_waits(
    name: str, broken: tuple[int, ...]
) -> None:
    same(played(ROUNDS[name](), lambda n: n in broken), played(ROUNDS[name]()))


def test_a_request_is_made_once_whatever_becomes_of_its_promise() -> None:
    """Clients' state is written with the answer: nobody may train twice in a round."""
    made, _ = played(None, lambda n: True)
    assert isinstance(made.engine, Breaking)
    assert [request.ids.tolist() for request in made.engine.asked] == [[0, 3, 5], [3, 1], [2, 4, 0]]


@pytest.mark.parametrize("broken", [(0,), (1,), (0, 1), (0, 1, 2, 3, 4, 5)])
def test_of_two_requests_the_second_is_asked_for_with_what_really_came_of_the_first(broken: tuple[int, ...]) -> None:
    ours, truth = (played(recompute(), lambda n, b=b: n in b) for b in (broken, ()))
    same(ours, truth)
    asked, wanted = ([r for r in made.engine.asked if isinstance(r, Train)] for made, _ in (ours, truth))
    assert len(asked) == len(wanted) == 6
    for a, b in zip(asked, wanted, strict=True):
        assert tree.digest(a.sent) == tree.digest(b.sent)
        assert a.ids.tolist() == b.ids.tolist()


# -------------------------------------------------------------------------------------------------- rounds of messages


@dataclass
class Words(StatelessEngine):
    """Answers a message with its words in capitals, after it has promised something else."""

    promises: dict[str, str] = field(default_factory=dict)
    heard: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    name = "words"

    def submit(self, request: Request) -> Pending[Any]:
        assert isinstance(request, Exchange)
        text = request.outbox[0].kind
        self.heard.append(text)
        truth = text.upper()
        promised = self.promises.get(text, truth)
        return Pending.done(truth) if promised == truth else Pending(promised, lambda: truth)


def say(text: str) -> Request:
    return Exchange({0: Message(text, {})})


def conversation(*texts: str, plays: list[list[str]] | None = None) -> Callable[[], Play]:
    """Says each of these words with the last answer before it, and returns all answers."""

    def play() -> Any:
        answers: list[str] = []
        if plays is not None:
            plays.append(answers)
        for text in texts:
            answers.append((yield say("".join(answers[-1:]) + text)))
        return answers

    return play


def test_a_driver_answers_every_request_and_gives_back_what_the_run_returns() -> None:
    def run() -> Asking[str]:
        first = yield say("a")
        second = yield say("b")
        return first.result() + second.result()

    assert drive(run(), Words()) == "AB"

    def silent() -> Asking[int]:
        return 3
        yield

    assert drive(silent(), Words()) == 3


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_what_an_engine_fails_with_is_raised_where_the_run_waits(error: BaseException) -> None:
    heard: list[BaseException] = []

    def run(catches: bool) -> Asking[str]:
        try:
            yield say("a")
        except BaseException as e:
            heard.append(e)
            if not catches:
                raise
        return (yield say("b")).result()

    class Failing(Words):
        def submit(self, request: Request) -> Pending[Any]:
            pending = super().submit(request)
            if self.heard[-1] == "a":
                raise error
            return pending

    with pytest.raises(type(error)) as raised:
        drive(run(False), Failing())
    assert raised.value is error
    assert drive(run(True), Failing()) == "B"
    assert heard == [error, error]


def test_promises_that_are_kept_are_played_once() -> None:
    plays: list[list[str]] = []
    engine = Words()
    assert drive(on_promises(conversation("a", "b", "c", plays=plays)), engine) == ["A", "AB", "ABC"]
    assert engine.heard == ["a", "Ab", "ABc"]
    assert len(plays) == 1


@pytest.mark.parametrize("broken", [{"a"}, {"Ab"}, {"ABc"}, {"a", "Ab"}, {"a", "ABc"}, {"a", "Ab", "ABc"}])
def test_wherever_promises_break_the_answers_are_those_that_came_and_each_question_is_put_once(
    broken: set[str],
) -> None:
    engine = Words(dict.fromkeys(broken, "?"))
    plays: list[list[str]] = []
    assert drive(on_promises(conversation("a", "b", "c", plays=plays)), engine) == ["A", "AB", "ABC"]
    assert engine.heard == ["a", "Ab", "ABc"]  # never with a promise that was not kept
    assert len(plays) == 1 + len(broken)


def test_a_round_may_ask_for_more_once_it_knows_what_really_came() -> None:
    def play() -> Any:
        first = yield say("a")
        return [first] if first == "?" else [first, (yield say("b"))]

    engine = Words({"a": "?"})
    assert drive(on_promises(play), engine) == ["A", "B"]
    assert engine.heard == ["a", "b"]


def choking(on: str, *texts: str) -> Callable[[], Play]:
    """A round that cannot go on after this answer."""

    def play() -> Any:
        answers: list[str] = []
        for text in texts:
            answers.append((yield say(text)))
            if answers[-1] == on:
                raise ValueError(f"cannot go on after {on}")
        return answers

    return play


@pytest.mark.parametrize("broken", ["a", "b"])
def test_a_round_that_fails_on_a_promise_that_is_not_kept_has_not_failed(broken: str) -> None:
    engine = Words({broken: "?"})
    assert drive(on_promises(choking("?", "a", "b")), engine) == ["A", "B"]
    assert engine.heard == ["a", "b"]


@pytest.mark.parametrize("promises", [{}, {"a": "?"}, {"b": "?"}])
def test_a_round_that_fails_on_what_really_came_has_failed(promises: dict[str, str]) -> None:
    for on, heard in (("A", ["a"]), ("B", ["a", "b"])):
        engine = Words(promises)
        with pytest.raises(ValueError, match=f"cannot go on after {on}"):
            drive(on_promises(choking(on, "a", "b", "c")), engine)
        assert engine.heard == heard


def test_a_round_that_asks_for_nothing_is_over() -> None:
    assert drive(on_promises(conversation()), Words()) == []


def test_the_host_has_its_time_once_the_last_request_is_under_way_and_before_its_answer() -> None:
    order: list[str] = []

    class Slow(Words):
        def submit(self, request: Request) -> Pending[Any]:
            pending = super().submit(request)
            text = self.heard[-1]
            order.append(f"begin {text}")

            def result() -> Any:
                order.append(f"end {text}")
                return pending.promised

            return Pending(pending.promised, result)

    drive(on_promises(conversation("a", "b"), meanwhile=lambda state: order.append(f"meanwhile {state}")), Slow())
    assert order == ["begin a", "end a", "begin Ab", "meanwhile A", "end Ab"]


def test_the_seconds_of_engines_are_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("atoll.runs.drivers.time.perf_counter", lambda: now[0])

    class Slow(Words):
        def submit(self, request: Request) -> Pending[Any]:
            now[0] += 2.0
            pending = super().submit(request)

            def result() -> Any:
                now[0] += 3.0
                return pending.promised

            return Pending(pending.promised, result)

    def busy(state: Any) -> None:
        now[0] += 100.0  # the host's, while the device is at work

    watch = Stopwatch()
    drive(on_promises(conversation("a", "b"), watch, busy), Slow())
    assert watch.seconds == 110.0
