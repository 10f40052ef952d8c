"""Checkpoints that take long are written less often."""

from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.errors import DivergenceError
from atoll.runs import checkpoint_schedule, run_loop, state
from atoll.runs.checkpoint_schedule import CheckpointSchedule, Sharing

DIGITS: dict[str, Any] = {
    "rounds": 9,
    "data": {"name": "digits"},
    "partition": {"name": "iid", "clients": 4},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "checkpoint": {"every": 2},
    "engine": "loop",
    "local": {"max_steps": 1},
}


class Clock:
    """Goes on when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def on(self, seconds: float) -> None:
        self.now += seconds


def written(each: float, cost: float, rounds: int, every: int, sharing: Sharing | None = None) -> list[int]:
    """After which rounds one is written, when a round takes `each` seconds and a checkpoint `cost`."""
    clock, after = Clock(), []
    with CheckpointSchedule(every, sharing, clock) as schedule:
        for done in range(1, rounds + 1):
            clock.on(each)
            if schedule.turn(done) and schedule.due():
                after.append(done)
                schedule.write(lambda: clock.on(cost))
    return after


def test_cheap_checkpoints_come_when_they_are_asked_for() -> None:
    assert written(each=0.001, cost=0.2, rounds=50, every=10) == [10, 20, 30, 40, 50]
    assert written(each=0.001, cost=0.2, rounds=50, every=0) == []


def test_dear_ones_wait_until_rounds_have_taken_ten_times_as_long() -> None:
    assert written(each=0.125, cost=1.25, rounds=400, every=10) == [10, 110, 210, 310]
    assert written(each=10.0, cost=1.0, rounds=40, every=10) == [10, 20, 30, 40]


def test_the_runs_of_a_stack_share_the_time_for_theirs_and_those_that_ended_do_not() -> None:
    stack = Sharing()
    with CheckpointSchedule(10, stack), CheckpointSchedule(10, stack):
        assert written(each=0.125, cost=1.25, rounds=700, every=10, sharing=stack) == [10, 310, 610]
        assert written(each=0.125, cost=1.25, rounds=200, every=10) == [10, 110]  # none of this stack
    assert written(each=0.125, cost=1.25, rounds=200, every=10, sharing=stack) == [10, 110]


def test_an_error_that_is_kept_does_not_keep_its_run_among_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = Sharing()
    monkeypatch.setattr(run_loop, "Sharing", lambda: stack)
    sharing: list[int] = []
    monkeypatch.setattr(CheckpointSchedule, "turn", lambda self, done: bool(sharing.append(len(stack.runs))))
    atoll.run(DIGITS, tmp_path / "good")
    assert set(sharing) == {1}
    with pytest.raises(DivergenceError) as kept:
        atoll.run(DIGITS | {"algorithm": {"name": "fedavg", "lr": 1e30}}, tmp_path / "bad")
    assert kept.tb is not None
    assert not stack.runs


def test_a_run_with_dear_checkpoints_ends_as_one_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[int] = []
    write = state.State.checkpoint
    monkeypatch.setattr(state.State, "checkpoint", lambda self: (times.append(len(self.plan.history)), write(self))[1])
    plain = atoll.run(DIGITS, tmp_path / "plain").history
    assert times == [2, 4, 6, 8, 9]
    times.clear()
    monkeypatch.setattr(checkpoint_schedule, "_CHEAP", 0.0)
    monkeypatch.setattr(checkpoint_schedule, "_SHARE", 1e9)
    dear = atoll.run(DIGITS, tmp_path / "dear").history
    assert times == [2, 9]  # the first one, and the end
    assert [e["model"] for e in dear] == [e["model"] for e in plain]
