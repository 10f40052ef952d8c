"""What an engine gets from its contract, if it says nothing else."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from atoll import rng
from atoll.core import ClientStates, Engine, Evaluate, Pending, Request
from atoll.tree import Tree

IDS = torch.arange(3)


class Plain(Engine):
    """No more than it must have."""

    name = "plain"

    def __init__(self) -> None:
        self.notes = []
        self.asked: list[Request] = []

    def submit(self, request: Request) -> Pending[Any]:
        self.asked.append(request)
        turn = len(self.asked)
        return Pending(f"promise {turn}", lambda: f"answer {turn}")

    def state(self) -> ClientStates:
        raise NotImplementedError

    def load(self, pieces: Iterable[tuple[Tensor, Tree]]) -> None:
        raise NotImplementedError

    def choice(self) -> dict[str, Any]:
        return {"name": self.name}


def request() -> Request:
    return Evaluate("test", IDS)


def test_running_is_submitting_and_waiting() -> None:
    engine, asked = Plain(), request()
    assert engine.run(asked) == "answer 1"
    assert engine.asked == [asked]


def test_what_is_told_ahead_may_be_ignored() -> None:
    engine = Plain()
    engine.prepare(IDS, rng.key(0), rng.key(1))
    engine.expect(100)
    assert engine.asked == []
    assert engine.notes == []


def test_nothing_is_said_of_its_seconds() -> None:
    assert Plain().lap() == {}


def test_nothing_can_be_done_beside_others() -> None:
    assert Plain().signature(request()) is None


def test_each_run_is_answered_by_its_own_engine_in_the_order_given() -> None:
    engines, asked = [Plain(), Plain()], [request() for _ in range(3)]
    leader = Plain()
    assert leader.leading(engines) is leader
    lanes = list(zip([engines[0], engines[1], engines[0]], asked, strict=True))
    assert leader.submit_together(lanes) == ["answer 1", "answer 1", "answer 2"]
    assert leader.asked == []
    assert [engine.asked for engine in engines] == [[asked[0], asked[2]], [asked[1]]]


@pytest.mark.parametrize("missing", ["submit", "state", "load", "choice"])
def test_an_engine_without_one_of_these_is_none(missing: str) -> None:
    rest = {k: v for k, v in vars(Plain).items() if k in ("__init__", "submit", "state", "load", "choice")}
    del rest[missing]
    with pytest.raises(TypeError, match=missing):
        type("Part", (Engine,), rest)()
