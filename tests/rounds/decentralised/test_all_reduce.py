"""All-reduce: schedules of sends whose end is the sum, and a round that is the central one without a server."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.algorithms.fedavg import FedAvg
from atoll.clock import DeviceProfile, transfer_seconds
from atoll.errors import ConfigError
from atoll.records import Record, read_runs
from atoll.rounds import AllReduce
from atoll.rounds.decentralised import execute, schedule
from atoll.rounds.decentralised.all_reduce import part_bytes, plan_seconds
from atoll.rounds.decentralised.reduce_plans import part_bounds
from atoll.testing.assertions import distance
from atoll.testing.harness import federation
from atoll.testing.problems import quadratics

PLANS: tuple[Any, ...] = ("ring", "tree", "full")


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(PLANS), st.integers(1, 12), st.integers(1, 30), st.integers(0, 99))
def test_every_plan_leaves_everyone_with_the_sum(plan: Any, n: int, d: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    whole = draw.integers(-1000, 1000, (n, d))
    assert np.array_equal(execute(schedule(plan, n), whole), np.stack([whole.sum(0)] * n))
    real = draw.normal(size=(n, d)).astype(np.float32)
    assert np.allclose(execute(schedule(plan, n), real), real.sum(0), atol=1e-4)


@pytest.mark.parametrize(
    ("plan", "steps", "sends", "numbers"), [("ring", 14, 112, 14 / 8), ("tree", 6, 14, None), ("full", 1, 56, 7)]
)
def test_plans_take_as_many_steps_and_sends_as_is_known_of_them(
    plan: Any, steps: int, sends: int, numbers: float | None
) -> None:
    made = schedule(plan, 8)
    assert len(made.steps) == steps
    assert sum(len(step.source) for step in made.steps) == sends
    if numbers is not None:  # of a vector, sent by each
        assert sum(1 / made.parts for step in made.steps for source in step.source if source == 0) == numbers


def test_parts_cover_the_vector_and_differ_by_one() -> None:
    sizes = np.diff(part_bounds(schedule("ring", 7), 24))
    assert sizes.sum() == 24
    assert sizes.max() - sizes.min() == 1


@pytest.mark.parametrize("plan", PLANS)
def test_the_round_is_the_central_one_bit_for_bit(plan: Any) -> None:
    problem = quadratics()
    central = federation(problem, FedAvg(problem.task, 0.1))
    made = federation(problem, FedAvg(problem.task, 0.1), round=AllReduce(plan))
    for ids in ([0, 3, 4], range(6), []):
        central.run(ids)
        outcome = made.run(ids)
    assert distance(made.server, central.server) == 0.0
    assert outcome.bytes() == {"up": 0, "down": 0}


def test_bytes_are_those_of_the_sends() -> None:
    problem = quadratics()
    made = federation(problem, FedAvg(problem.task, 0.1), round=AllReduce("ring"))
    outcome = made.run(range(6))
    numbers = 4 + 4 + 1  # parameters, buffer, weight
    sizes = part_bytes(schedule("ring", 6), numbers)
    assert outcome.bytes()["up"] == 2 * 5 * int(sizes.sum())
    assert int(outcome.diagnostics["steps"]) == 10


def test_seconds_of_equal_nodes_are_steps_times_one_transfer() -> None:
    n, one = 8, np.ones(8)
    device = DeviceProfile(one, 1e6 * one, 1e6 * one, 0.01 * one, 0 * one)
    for plan, wide in (("ring", 1), ("tree", 1), ("full", 7)):
        made = schedule(plan, n)  # type: ignore[arg-type]
        sizes = np.full(made.parts, 5000.0)
        ends = plan_seconds(made, sizes, device, np.zeros(n), False)
        each = transfer_seconds(5000.0, 1e6 * one / wide, 0.02 * one, 0 * one, False)[0]
        assert ends.max() == pytest.approx(len(made.steps) * each)


def test_one_slow_node_holds_up_the_ring() -> None:
    n, one = 4, np.ones(4)
    device = DeviceProfile(one, 1e6 * one, 1e6 * one, 0 * one, 0 * one)
    begun = np.array([0.0, 0.0, 5.0, 0.0])
    ends = plan_seconds(schedule("ring", n), np.full(n, 1000.0), device, begun, False)
    assert ends.min() > 5.0


def record(run: atoll.Run) -> Record:
    return read_runs([run.folder])[0]


GIVEN: dict[str, Any] = {
    "rounds": 2,
    "data": "digits",
    "partition": {"name": "iid", "clients": 6},
    "task": {"model": "linear"},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "engine": "vector",
    "evaluate": {"clients": 0},
}


def test_a_file_switches_to_it_and_its_clock_goes_on(tmp_path: Path) -> None:
    clock = {"seconds_per_step": 0.01, "up_mbps": 1.0, "down_mbps": 1.0, "latency_ms": 10}
    central = atoll.run(GIVEN, tmp_path / "central")
    run = atoll.run({**GIVEN, "round": {"name": "all_reduce", "plan": "tree"}, "clock": clock}, tmp_path / "reduce")
    assert distance(run.params, central.params) == 0.0
    ends = [line["clock"]["end"] for line in record(run).rounds]
    assert 0 < ends[0] < ends[1]


def test_compressors_and_medians_are_refused(tmp_path: Path) -> None:
    given = {**GIVEN, "round": "all_reduce"}
    with pytest.raises(ConfigError, match=r"transform.0: .* partial sums turn into plain numbers again, .* 'central'"):
        atoll.run({**given, "transform": [{"name": "top_k", "share": 0.1}]}, tmp_path / "a")
    with pytest.raises(ConfigError, match=r"an all-reduce adds up, and Median"):
        atoll.run({**given, "reducer": "median"}, tmp_path / "b")
