"""Asynchronous rounds: what they become where nobody is late, and a plain simulation of events beside them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import atoll
from atoll import tree
from atoll.algorithms.fedavg import FedAvg
from atoll.cli.replay import replay
from atoll.clock import Clock, Devices, Timeline
from atoll.clock.device_classes import IDEAL
from atoll.core import Chain
from atoll.engines import Loop, Threads
from atoll.errors import ConfigError, RecordError, SpecError
from atoll.experiment import Experiment, set_up
from atoll.privacy import ACCOUNTANTS, Composed, Gaussian, Sampled, accountant_for
from atoll.records import RunFolder
from atoll.reducers import Discounted, Mean, Median, StalenessDiscount
from atoll.rounds import Central
from atoll.rounds.asynchronous import Asynchronous
from atoll.rounds.asynchronous_names import asynchronous, fedasync, fedbuff
from atoll.runs import run_together, virtual_time
from atoll.testing import check_reducer, check_round
from atoll.testing.assertions import distance
from atoll.testing.harness import federation
from atoll.testing.problems import SIZES, flat, network, quadratics
from atoll.transforms import TRANSFORMS
from tests.support.event_heap import EventHeap

LR = 0.1
SLOWNESS = np.array([1.0, 3.7, 0.6, 9.0, 2.2, 1.3])


def steps(ids: Tensor) -> Tensor:
    return torch.tensor([-(-n // 2) for n in SIZES])[ids]


def timed(round: Asynchronous, dropout: float = 0.2) -> Asynchronous:
    devices = Devices(((1.0, IDEAL),), {"slowness": SLOWNESS})
    found = round.in_virtual_time(Clock(devices, 1.0, dropout=dropout, seed=3), steps)
    assert isinstance(found, Asynchronous)
    return found


# What it becomes.


def test_where_all_are_equally_fast_it_is_the_central_round_bit_for_bit() -> None:
    problem = network()
    ends = []
    for round in (Central(), asynchronous(6, 6), fedbuff(6, 6), asynchronous(6, window=1.0)):
        made = federation(problem, FedAvg(problem.task, LR), round=round)
        for _ in range(4):
            made.run(range(6))
        ends.append(made.round.model(made.state))
    assert all(tree.digest(end) == tree.digest(ends[0]) for end in ends[1:])


def test_one_client_at_work_at_a_time_is_never_stale_and_fedasync_is_then_fedavg_of_one() -> None:
    problem = quadratics()
    made = federation(problem, FedAvg(problem.task, LR), round=timed(fedasync(1, alpha=1.0), 0.0))
    plain = federation(problem, FedAvg(problem.task, LR))
    for _ in range(8):
        outcome = made.run(range(6))
        plain.run(outcome.ids.tolist())
        assert int(outcome.diagnostics["staleness"]["max"]) == 0
    assert distance(made.server["params"], plain.server["params"]) < 1e-6


# A plain simulation of events.


def local(problem: Any, client: int, w: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    row = int(problem.partition.of(client)[0])
    A = problem.columns["x"][row].double().numpy().reshape(4, 4)
    b = problem.columns["y"][row].double().numpy()
    x = w.copy()
    for _ in range(-(-SIZES[client] // 2)):
        x -= LR * A @ (x - b)
    return x - w


def buffered(w: Any, came: Any) -> Any:
    """FedBuff: updates over sqrt(1 + staleness), their sum over that of the weights."""
    total = sum(SIZES[c] * change / np.sqrt(1 + stale) for c, stale, _, change in came)
    return w + total / sum(SIZES[c] for c, *_ in came)


def alike(w: Any, came: Any) -> Any:
    """FedBuff as published: 1/K sum of s(t) u."""
    return w + sum(change / np.sqrt(1 + stale) for _, stale, _, change in came) / len(came)


def mixed(w: Any, came: Any) -> Any:
    """FedAsync with a hinge: 1 up to b = 2, then 1 / (a (t - b) + 1), a = 0.7."""
    _, stale, sent, change = came[0]
    share = 0.6 * (1.0 if stale <= 2 else 1 / (0.7 * (stale - 2) + 1))
    return (1 - share) * w + share * (sent + change)


EQUAL = Chain((TRANSFORMS["equal_weights"](),))


@pytest.mark.parametrize(
    ("round", "server", "more"),
    [
        (fedbuff(4, 3), buffered, {"buffer": 3}),
        (fedbuff(4, 3), alike, {"buffer": 3, "chain": EQUAL}),
        (fedasync(4, 0.6, "hinge", 0.7, 2.0), mixed, {"buffer": 1}),
        (asynchronous(5, window=2.3), buffered, {"buffer": np.inf, "window": 2.3}),
        (asynchronous(4, 2, 3.0, max_staleness=2), buffered, {"buffer": 2, "window": 3.0, "max_staleness": 2}),
    ],
    ids=["fedbuff", "fedbuff as published", "fedasync", "window", "both and too old"],
)
def test_it_is_a_heap_of_events_that_trains_clients_one_by_one(round: Asynchronous, server: Any, more: Any) -> None:
    problem, more = quadratics(), dict(more)
    made = federation(problem, FedAvg(problem.task, LR), round=timed(round), chain=more.pop("chain", Chain()))
    start = flat(problem.model["params"]).double().numpy()
    clock, work = timed(round).clock, steps(torch.arange(6)).numpy()
    oracle = EventHeap(
        clock, 6, round.concurrency, more.pop("buffer"), work, lambda c, w: local(problem, c, w), server, start, **more
    )
    stale = 0
    for _ in range(60):
        outcome, expected = made.run(range(6)), oracle.step()
        assert outcome.ids.tolist() == [client for client, _ in expected]
        assert outcome.timeline is not None
        assert outcome.timeline.end == pytest.approx(oracle.now)
        stale = max(stale, int(outcome.diagnostics["staleness"]["max"]))
        assert np.abs(flat(made.server["params"]).double().numpy() - oracle.model).max() < 2e-6
    assert stale > 1


# The contract.


@pytest.mark.parametrize("round", [timed(fedbuff(4, 3)), timed(fedasync(3)), timed(asynchronous(3, window=9.0))])
def test_it_does_what_a_round_must(round: Asynchronous) -> None:
    chains = {"clip": (TRANSFORMS["clip_l2"](0.5),), "top k": (TRANSFORMS["top_k"](0.5),)}
    assert "both halves of every transform" in check_round(round, chains)


@pytest.mark.parametrize("engine", [Loop, Threads])
def test_it_is_the_same_on_every_engine(engine: Any) -> None:
    problem = network()
    ends = []
    for which in (engine, None):
        more = {} if which is None else {"engine": which}
        made = federation(problem, FedAvg(problem.task, LR), round=timed(fedbuff(4, 3)), **more)
        for _ in range(5):
            made.run(range(6))
        ends.append(made.round.model(made.state))
    assert distance(*ends) < 1e-5


def test_only_versions_that_somebody_was_sent_take_memory() -> None:
    problem = quadratics()
    made = federation(problem, FedAvg(problem.task, LR), round=timed(fedbuff(5, 1)))
    for _ in range(20):
        outcome = made.run(range(6))
    at_work = int(outcome.diagnostics["versions_in_flight"])
    copies = {id(x["params"]["body"]) for x in made.state["versions"]["sent"].values()}
    assert at_work > 1
    assert len(copies) <= at_work + 1  # and the newest


def test_discounts_are_those_of_the_papers() -> None:
    t = torch.tensor([0.0, 3.0, 8.0])
    assert StalenessDiscount("constant", alpha=0.5)(t).tolist() == [0.5, 0.5, 0.5]
    assert torch.allclose(StalenessDiscount("polynomial", 0.5)(t), torch.tensor([1.0, 0.5, 1 / 3]))
    assert torch.allclose(StalenessDiscount("hinge", 10.0, 4.0)(t), torch.tensor([1.0, 1.0, 1 / 41]))


@pytest.mark.parametrize("inner", [Mean(), Median()])
def test_a_discounted_reducer_is_a_reducer_and_stale_updates_count_less(inner: Any) -> None:
    check_reducer(Discounted(inner, StalenessDiscount("polynomial")))


# In a file.

BUFFERED = {"name": "fedbuff", "concurrency": 5, "buffer": 2}
GIVEN: dict[str, Any] = {
    "rounds": 8,
    "engine": "vector",
    "data": "digits",
    "partition": {"name": "dirichlet", "alpha": 0.3, "clients": 12},
    "task": {"model": "linear"},
    "local": {"batch": 16},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "round": BUFFERED,
    "clock": {"seconds_per_step": 0.1, "devices": "phones", "dropout": 0.1},
    "evaluate": {"clients": 0, "every": 4},
    "checkpoint": {"every": 1},
}
NOISE = ["equal_weights", {"name": "clip_l2", "max_norm": 0.5}, {"name": "gaussian_noise", "noise_multiplier": 2.0}]


def record(run: atoll.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder(run.folder).record()]


def test_the_record_has_staleness_versions_and_time(tmp_path: Path) -> None:
    lines = record(atoll.run(GIVEN, tmp_path / "a"))
    said = lines[-1]["diagnostics"]
    assert said["version"] == 8
    assert sum(said["staleness"]["histogram"]) == lines[-1]["cohort"]["size"] == 2
    assert all(a["clock"]["end"] == b["clock"]["start"] for a, b in pairwise(lines))
    assert max(line["diagnostics"]["staleness"]["max"] for line in lines) > 0


def test_a_resumed_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    layers = [{"name": "clip_l2", "max_norm": 0.5}, {"name": "top_k", "share": 0.3}]
    file = {**GIVEN, "transform": layers, "server": {"ema": 0.9}}
    whole = atoll.run(file, tmp_path / "whole")
    atoll.run({**file, "rounds": 3}, tmp_path / "part")
    resumed = atoll.run(file, tmp_path / "part", resume=True)
    assert record(resumed)[3:] == record(whole)[3:]
    assert RunFolder(resumed.folder).times() == RunFolder(whole.folder).times()


def test_a_stack_of_runs_is_each_of_them(tmp_path: Path) -> None:
    alone = atoll.run(GIVEN, tmp_path / "alone")
    files = [Experiment.parse({**GIVEN, "seed": seed}) for seed in (0, 1)]
    together = run_together(files, [tmp_path / "0", tmp_path / "1"])
    assert RunFolder(together[0].folder).times() == RunFolder(alone.folder).times()
    assert distance(together[0].params, alone.params) < 1e-5


@pytest.mark.parametrize(
    "more",
    [
        {"attack": {"name": "sign_flip", "share": 0.2}},
        {"attack": {"name": "label_flip", "share": 0.2}, "reducer": "median"},
        {"reducer": "fltrust", "server": {"root": 0.05}},
        {"algorithm": {"name": "fedadam", "lr": 0.1, "server_lr": 0.01}},
        {"transform": [{"name": "qsgd", "levels": 4}], "engine": "loop"},
        {"cohort": {"name": "fixed", "size": 8}, "round": {"name": "fedasync", "concurrency": 4}},
        {"clock": {"seconds_per_step": 0.1, "devices": "phones", "deadline": 1.0}, "server": {"ema": 0.9}},
    ],
    ids=["sign_flip", "label_flip", "fltrust", "fedadam", "qsgd", "fedasync", "deadline"],
)
def test_other_parts_of_a_file_go_on_working(more: dict[str, Any], tmp_path: Path) -> None:
    run = atoll.run({**GIVEN, "rounds": 4, **more}, tmp_path / "a")
    assert np.isfinite(run.history[-1]["loss"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"clock": None}, r"round\.name: .* Add \[clock\]"),
        ({"round": {**BUFFERED, "concurrency": 0}}, r"round\.concurrency: must be at least 1"),
        ({"round": {**BUFFERED, "buffer": 13}}, r"round\.buffer: 13 clients, and there are 12.*at most 12"),
        (
            {"round": {**BUFFERED, "buffer": 6}, "cohort": {"name": "fixed", "size": 4}},
            r"round\.buffer: 6 reports, and the cohort has 4 .* never be full. Use at most 4",
        ),
        ({"round": {**BUFFERED, "concurrency": 40}}, r"round\.concurrency: 40 clients, and there are 12"),
        ({"round": {"name": "asynchronous", "window": 0.0}}, r"round\.window: must be above 0"),
        ({"round": {"name": "asynchronous", "buffer": 2, "mixing": "model"}}, r"round\.mixing: .* Use buffer = 1"),
        ({"algorithm": {"name": "scaffold", "lr": 0.1}}, r"round\.name: Scaffold .* updates of different age"),
        ({"algorithm": {"name": "centralised", "lr": 0.1}}, r"round\.name: Centralised trains on all data"),
        ({"clock": {"seconds_per_step": 1.0, "min_reports": 3}}, r"clock\.min_reports: is for one server that waits"),
        ({"broadcast": ["half"]}, r"broadcast: .* clients hold models of different age"),
        ({"transform": NOISE, "privacy": {"canaries": 4}}, r"privacy\.canaries: are planted in cohorts"),
    ],
)
def test_what_cannot_hold_is_refused_with_advice(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = {k: v for k, v in {**GIVEN, **more}.items() if v is not None}
    with pytest.raises((ConfigError, SpecError), match=message):
        atoll.run(file, tmp_path / "a")


# Privacy: an epsilon only for what holds.


def test_the_epsilon_is_that_of_a_client_in_every_step_without_amplification(tmp_path: Path) -> None:
    run = atoll.run({**GIVEN, "transform": NOISE}, tmp_path / "a")
    block = run.info["privacy"]["client"]
    whole = Composed(((Sampled(Gaussian(2.0), "everyone", 12, 12), 8),))
    assert block["epsilon"] == pytest.approx(accountant_for(whole, ACCOUNTANTS).epsilon(whole, block["delta"]))
    assert block["adjacency"] == "zero-out"
    assert any("how many examples each client has" in note for note in block["assumed"])
    spent = [line["privacy"]["epsilon"] for line in run.history]
    assert spent == sorted(spent)
    resumed = atoll.run({**GIVEN, "transform": NOISE, "rounds": 9}, tmp_path / "a", resume=True)
    assert resumed.info["privacy"]["client"]["epsilon"] > block["epsilon"]


def test_nobody_is_twice_in_a_step_which_the_epsilon_rests_on(tmp_path: Path) -> None:
    fast = {"seconds_per_step": 0.1, "slowness": {"low": 0.01, "high": 9.0}}
    run = atoll.run({**GIVEN, "rounds": 20, "clock": fast, "round": {**BUFFERED, "buffer": 6}}, tmp_path / "a")
    for line in record(run):
        assert len(set(line["cohort"]["ids"])) == len(line["cohort"]["ids"])


def test_noise_in_shares_of_clients_is_refused_since_a_step_may_have_fewer(tmp_path: Path) -> None:
    layers = [*NOISE[:2], {"name": "fixed_point", "step": 0.001}, {"name": "skellam", "noise_multiplier": 2.0}]
    with pytest.raises((ConfigError, SpecError)):
        atoll.run({**GIVEN, "clock": {"seconds_per_step": 0.1}, "transform": layers}, tmp_path / "a")


def test_a_run_is_not_timed_again_by_another_clock(tmp_path: Path) -> None:
    run = atoll.run({**GIVEN, "clock": {"seconds_per_step": 0.1}, "rounds": 2}, tmp_path / "a")
    with pytest.raises(RecordError, match="whoever came back first"):
        replay(run.folder, ["clock.seconds_per_step=0.2"])


def test_a_forecast_is_the_time_that_a_run_takes(tmp_path: Path) -> None:
    setup = set_up(Experiment.parse(GIVEN))
    run = atoll.run(GIVEN, tmp_path / "a")
    first = Timeline.from_line(RunFolder(run.folder).times()[0])
    assert virtual_time(setup, first).total == pytest.approx(run.history[-1]["clock"]["end"])
