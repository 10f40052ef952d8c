"""Hierarchies: what they become where edges do nothing of their own, and a plain loop over edges beside them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll import rng, tree
from atoll.algorithms.fedavg import FedAvg
from atoll.algorithms.fedopt import FedOpt, Straight
from atoll.clock import Clock, Devices, UniformQuantity
from atoll.clock.device_classes import IDEAL
from atoll.core import Chain
from atoll.engines import Loop, Threads
from atoll.errors import ConfigError, SpecError
from atoll.experiment import Experiment, set_up
from atoll.privacy import ACCOUNTANTS, Composed, Gaussian, Sampled, accountant_for
from atoll.records import RunFolder
from atoll.reducers import Grouped, Mean, Median
from atoll.rounds import Central
from atoll.rounds.edge_plan import EdgeBytes, EdgeCourse, EdgeLink
from atoll.rounds.edges import make_edges
from atoll.rounds.hierarchical import Hierarchical
from atoll.rounds.hierarchical_names import hierarchical
from atoll.testing import check_reducer, check_round
from atoll.testing.assertions import distance
from atoll.testing.harness import federation
from atoll.testing.problems import SIZES, flat, network, quadratics
from atoll.transforms import TRANSFORMS
from tests.support.marks import slow

LR = 0.1


def model(round: Any, rounds: int = 3, chain: Chain | None = None, **more: Any) -> Any:
    problem = network()
    made = federation(problem, FedAvg(problem.task, LR), round=round, chain=chain, **more)
    for _ in range(rounds):
        made.run(range(6))
    return made.round.model(made.state)


# What it becomes.


@pytest.mark.parametrize("layers", [(), (TRANSFORMS["clip_l2"](0.1), TRANSFORMS["gaussian_noise"](1.0))])
def test_one_edge_is_the_central_round_bit_for_bit(layers: Any) -> None:
    layers = (TRANSFORMS["equal_weights"](), *layers) if layers else ()
    central, edge = (model(round, chain=Chain(layers)) for round in (Central(), hierarchical(6, [1])))
    assert tree.digest(edge) == tree.digest(central)


@pytest.mark.parametrize("edges", [[2], [6], [3, 2], [5, 3, 1]])
def test_edges_that_make_one_round_each_are_the_central_round_to_rounding(edges: list[int]) -> None:
    assert distance(model(hierarchical(6, edges)), model(Central())) < 1e-6


def test_an_edge_for_every_client_that_makes_two_rounds_is_two_epochs_of_local_training() -> None:
    problem = quadratics()
    made = federation(problem, FedAvg(problem.task, LR), round=hierarchical(6, [6], [2]))
    made.run(range(6))
    assert np.abs(flat(made.server["params"]).double().numpy() - _two_epochs(problem)).max() < 1e-6


def _two_epochs(problem: Any) -> Any:
    start = flat(problem.model["params"]).double().numpy()
    ends = [start + local(problem, c, start) for c in range(6)]
    ends = [w + local(problem, c, w) for c, w in enumerate(ends)]
    return sum(n * w for n, w in zip(SIZES, ends, strict=True)) / sum(SIZES)


def test_a_servers_own_step_is_made_at_the_top_alone() -> None:
    """Half a step of the server, whole ones of the edges."""
    problem = quadratics()
    half = FedOpt(problem.task, LR, 0.5, Straight())
    ends = []
    for algorithm in (half, FedAvg(problem.task, LR)):
        made = federation(problem, algorithm, round=hierarchical(6, [2], [3]))
        before = flat(made.server["params"])
        made.run(range(6))
        ends.append(flat(made.server["params"]) - before)
    assert torch.allclose(2 * ends[0], ends[1], atol=1e-5)


# A plain loop over edges.


def local(problem: Any, client: int, w: Any) -> Any:
    row = int(problem.partition.of(client)[0])
    A = problem.columns["x"][row].double().numpy().reshape(4, 4)
    b = problem.columns["y"][row].double().numpy()
    x = w.copy()
    for _ in range(-(-SIZES[client] // 2)):
        x -= LR * A @ (x - b)
    return x - w


def looped(problem: Any, w: Any, node: Any, rounds: list[int]) -> tuple[Any, float]:
    """What a node changes, and its weight: a client is a number, an edge a list of what reports to it."""
    if isinstance(node, int):
        return local(problem, node, w), SIZES[node]
    x, weights = w.copy(), []
    for _ in range(rounds[-1]):
        ends = [looped(problem, x, child, rounds[:-1]) for child in node]
        weights.append(sum(n for _, n in ends))
        x += sum(n * change for change, n in ends) / weights[-1]
    return x - w, sum(weights) / len(weights)


@pytest.mark.parametrize(
    ("options", "nodes", "rounds"),
    [
        ({"edges": [2], "rounds": [3]}, [[0, 1, 2], [3, 4, 5]], [3]),
        ({"groups": [[5, 0], [1, 2, 4, 3]], "rounds": [2]}, [[0, 5], [1, 2, 3, 4]], [2]),
        ({"edges": [3, 2], "rounds": [2, 3]}, [[[0, 1], [2, 3]], [[4, 5]]], [2, 3]),
        ({"edges": [4, 2, 1], "rounds": [1, 2, 2]}, [[[[0, 1], [2, 3]], [[4], [5]]]], [1, 2, 2]),
    ],
)
def test_it_is_a_plain_loop_over_edges(options: Any, nodes: Any, rounds: list[int]) -> None:
    problem = quadratics()
    made = federation(problem, FedAvg(problem.task, LR), round=hierarchical(6, **options))
    w = flat(problem.model["params"]).double().numpy()
    for _ in range(4):
        made.run(range(6))
        w = w + looped(problem, w, nodes, [*rounds, 1])[0]
        assert np.abs(flat(made.server["params"]).double().numpy() - w).max() < 2e-6


# Who is whose edge.


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 30), st.lists(st.integers(1, 30), min_size=1, max_size=3))
def test_a_split_leaves_nobody_out_and_no_edge_empty_or_is_refused(population: int, edges: list[int]) -> None:
    falls = all(a >= b for a, b in zip([population, *edges], edges, strict=False))
    if not falls:
        with pytest.raises(ConfigError, match="leave some without any"):
            make_edges(population, (), edges, None, (), ())
        return
    found = make_edges(population, (), edges, None, (), ())
    for above, size in zip(found.above, found.sizes, strict=True):
        counts = np.bincount(above, minlength=size)
        assert counts.min() >= 1
        assert counts.max() - counts.min() <= 1
        assert counts.sum() == len(above)


def test_a_share_of_clients_and_edges_takes_part_in_each_round_of_an_edge() -> None:
    edges = make_edges(20, (), [4, 2], None, (2, 3), (0.4, 0.5, 1.0))
    course = EdgeCourse(edges, (EdgeLink(), EdgeLink()), None, np.ones_like)
    plan = course.plan(0, np.arange(20), rng.key("a"), EdgeBytes(0, 0, 0, (0, 0)), (0.0, 0.0, 0.0))
    assert len(plan.cohorts) == 6
    for cohort, active in zip(plan.cohorts, plan.active, strict=True):
        own = edges.above[0][cohort]
        assert active[0].reshape(2, 2).sum(1).tolist() == [1, 1]  # of two edges of each region, one
        assert np.bincount(own, minlength=4)[active[0]].tolist() == [2, 2]  # of five clients, two
        assert not np.bincount(own, minlength=4)[~active[0]].any()
    assert plan.messages(edges, 0) == 6  # two edges, three times
    assert plan.messages(edges, 1) == 2
    assert len({tuple(c) for c in plan.cohorts}) > 1


def test_every_edge_waits_for_its_own_clients_and_the_server_for_the_slowest_edge() -> None:
    edges = make_edges(6, (), [2], None, (2,), ())
    slow = Devices(((1.0, {**IDEAL, "slowness": UniformQuantity(1.0, 9.0)}),))
    clock = Clock(slow, 1.0)
    course = EdgeCourse(edges, (EdgeLink(latency_ms=500.0),), clock, np.ones_like)
    plan = course.plan(0, np.arange(6), rng.key("a"), EdgeBytes(0, 0, 0, (0,)), (10.0, 1.0, 0.0))
    taken = slow.profile(np.arange(6)).slowness
    slowest = max(taken[:3].max(), taken[3:].max())
    assert plan.timeline is not None
    assert plan.timeline.end == pytest.approx(10.0 + 0.5 + 2 * slowest + 0.5)
    first = plan.timeline.begins[plan.timeline.ids == 0]
    assert first.tolist() == pytest.approx([10.5, 10.5 + taken[:3].max()])


# The contract.


@pytest.mark.parametrize(
    "round",
    [
        hierarchical(6, [3]),
        slow(hierarchical(6, [3, 2], [2, 2], [0.5, 1.0, 1.0])),
        slow(hierarchical(6, [2], transform=[TRANSFORMS["top_k"](0.5), TRANSFORMS["qsgd"](8)])),
        hierarchical(6, [2], [2]),
    ],
    ids=["plain", "levels", "transforms", "two rounds"],
)
def test_it_does_what_a_round_must(round: Hierarchical) -> None:
    chains = {"clip": (TRANSFORMS["clip_l2"](0.5),), "top k": (TRANSFORMS["top_k"](0.5),)}
    assert "both halves of every transform" in check_round(round, chains)


@pytest.mark.parametrize("engine", [Loop, Threads])
def test_it_is_the_same_on_every_engine(engine: Any) -> None:
    round = hierarchical(6, [3, 2], [2, 1])
    assert distance(model(round, engine=engine), model(round)) < 1e-5


@pytest.mark.parametrize("inner", [Mean(), Median()])
def test_a_reducer_in_groups_is_a_reducer(inner: Any) -> None:
    group = torch.zeros(64, dtype=torch.int64)
    check_reducer(Grouped(inner, group, 1))


# In a file.

HIERARCHY = {"name": "hierarchical", "edges": [4, 2], "rounds": [2, 1]}
GIVEN: dict[str, Any] = {
    "rounds": 5,
    "engine": "vector",
    "data": "digits",
    "partition": {"name": "dirichlet", "alpha": 0.3, "clients": 12},
    "task": {"model": "linear"},
    "local": {"batch": 16},
    "algorithm": {"name": "fedavg", "lr": 0.1},
    "round": HIERARCHY,
    "evaluate": {"clients": 0, "every": 5},
    "checkpoint": {"every": 1},
}
PHONES = {"seconds_per_step": 0.1, "devices": "phones", "dropout": 0.2}
NOISE = ["equal_weights", {"name": "clip_l2", "max_norm": 0.5}, {"name": "gaussian_noise", "noise_multiplier": 2.0}]


def record(run: atoll.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in RunFolder(run.folder).record()]


def test_a_resumed_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    up = {**HIERARCHY, "share": [0.7, 1.0, 1.0], "transform": [{"name": "top_k", "share": 0.3}]}
    file = {**GIVEN, "round": up, "clock": PHONES, "server": {"ema": 0.9}}
    whole = atoll.run(file, tmp_path / "whole")
    atoll.run({**file, "rounds": 3}, tmp_path / "part")
    resumed = atoll.run(file, tmp_path / "part", resume=True)
    assert record(resumed)[3:] == record(whole)[3:]


def test_bytes_are_those_of_all_levels(tmp_path: Path) -> None:
    lines = record(atoll.run({**GIVEN, "rounds": 1}, tmp_path / "a"))
    levels = lines[0]["diagnostics"]["traffic"]
    assert list(levels) == ["clients", "level_1", "level_2"]
    assert {name: sum(level[name] for level in levels.values()) for name in ("up", "down")} == lines[0]["bytes"]
    assert levels["level_1"]["down"] == 2 * levels["level_2"]["down"]  # four edges, two regions, once a round
    assert len(lines[0]["cohort"]["ids"]) == 24  # twelve clients, twice


def test_edges_compress_what_they_send_and_say_so_in_the_record(tmp_path: Path) -> None:
    up = []
    for i, layers in enumerate(([], [{"name": "top_k", "share": 0.05}])):
        run = atoll.run({**GIVEN, "rounds": 1, "round": {**HIERARCHY, "transform": layers}}, tmp_path / str(i))
        up.append(record(run)[0]["diagnostics"]["traffic"]["level_1"]["up"])
    assert up[1] < 0.5 * up[0]


@pytest.mark.parametrize(
    "more",
    [
        {"attack": {"name": "sign_flip", "share": 0.2}},
        {"attack": {"name": "label_flip", "share": 0.2}, "reducer": "median"},
        {"algorithm": {"name": "fedadam", "lr": 0.1, "server_lr": 0.01}, "clock": {**PHONES, "deadline": 2.0}},
        {"algorithm": {"name": "scaffold", "lr": 0.1}, "round": {"name": "hierarchical", "edges": [3]}},
        {"transform": [{"name": "qsgd", "levels": 4}], "cohort": {"name": "fixed", "size": 6}},
        {"partition": {"name": "groups", "clients": 12, "groups": 3, "alpha": 1.0},
         "round": {"name": "hierarchical", "groups": "partition", "rounds": [2]}},
        {"task": {"model": {"name": "cnn"}, "batch_norm": "recompute"}, "local": {"max_steps": 1}},
    ],
    ids=["sign_flip", "label_flip", "fedadam", "scaffold", "qsgd", "groups", "recompute"],
)  # fmt: skip
def test_other_parts_of_a_file_go_on_working(more: dict[str, Any], tmp_path: Path) -> None:
    run = atoll.run({**GIVEN, "rounds": 2, **more}, tmp_path / "a")
    assert np.isfinite(run.history[-1]["loss"])


ONE = {"name": "hierarchical", "edges": [3]}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"round": {**HIERARCHY, "edges": [13]}}, r"round\.edges: 13 edges for 12 clients leave some without"),
        ({"round": {**HIERARCHY, "edges": [3, 5]}}, r"round\.edges: 5 edges for the 3 edges below"),
        ({"round": {**ONE, "edges": [0]}}, r"round\.edges\.0: must be at least 1"),
        (
            {"round": {"name": "hierarchical", "groups": [[0, 1], [2]]}},
            r"leaves 9 of 12 clients out \(3, 4, .*edges = ",
        ),
        ({"round": {"name": "hierarchical", "groups": [[0, 1], []]}}, r"edge 1 has no clients"),
        ({"round": {"name": "hierarchical", "groups": [[0, 1], [1]]}}, r"client 1 has two edges, 0 and 1"),
        ({"round": {"name": "hierarchical", "groups": [[0, 77]]}}, r"there is no client 77.*0 to 11"),
        ({"round": {**ONE, "groups": "partition"}}, r"this partition has no groups"),
        ({"round": {**ONE, "rounds": [1, 2]}}, r"round\.rounds: has 2 numbers, and needs 1"),
        ({"round": {**ONE, "share": [0.5]}}, r"round\.share: has 1 numbers, and needs 2"),
        ({"round": {**ONE, "link_mbps": [1.0, 2.0]}}, r"round\.link_mbps: has 2 numbers"),
        (
            {"round": {**ONE, "transform": NOISE}},
            r"round\.transform\.2: gaussian_noise .* Put it into \[\[transform\]\]",
        ),
        ({"algorithm": {"name": "scaffold", "lr": 0.1}}, r"round\.name: Scaffold .* Use round\.rounds = \[1\]"),
        ({"algorithm": {"name": "fednova", "lr": 0.1}}, r"round\.rounds: edges apply changes of the model"),
        ({"algorithm": {"name": "centralised", "lr": 0.1}}, r"round\.name: Centralised"),
        ({"broadcast": ["half"]}, r"broadcast: .* every edge sends its own model"),
        ({"reducer": "fltrust", "server": {"root": 0.1}}, r"reducer\.name: FLTrust needs server\.root"),
        ({"reducer": {"name": "krum", "f": 2}}, r"krum|reducer"),
        ({"transform": NOISE}, r"a client is in 2 sums of one round"),
        ({"local": {"privacy": {"noise_multiplier": 1.0, "max_norm": 1.0}}}, r"local\.privacy: a client is in 2 sums"),
        ({"transform": NOISE, "round": ONE, "privacy": {"canaries": 4}}, r"privacy\.canaries: are looked for in one"),
        ({"clock": {**PHONES, "min_reports": 2}}, r"clock\.min_reports: is for one server"),
    ],
)
def test_what_cannot_hold_is_refused_with_advice(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, SpecError), match=message):
        atoll.run({**GIVEN, **more}, tmp_path / "a")


def test_noise_at_the_edges_has_the_epsilon_of_a_client_in_every_round(tmp_path: Path) -> None:
    run = atoll.run({**GIVEN, "round": ONE, "transform": NOISE}, tmp_path / "a")
    block = run.info["privacy"]["client"]
    whole = Composed(((Sampled(Gaussian(2.0), "everyone", 12, 12), 5),))
    assert block["epsilon"] == pytest.approx(accountant_for(whole, ACCOUNTANTS).epsilon(whole, block["delta"]))
    assert block["adjacency"] == "zero-out"


def test_every_edge_adds_noise_of_its_own_to_its_own_sum() -> None:
    """Clients that send next to nothing: noise of deviation 1 over six clients, once, or by each of three edges."""
    names = (("equal_weights",), ("clip_l2", 1e-9), ("gaussian_noise", 1e9))
    chain, steps = Chain(tuple(TRANSFORMS[name](*options) for name, *options in names)), []
    for edges in ([1], [3]):
        problem = quadratics()
        made = federation(problem, FedAvg(problem.task, LR), round=hierarchical(6, edges), chain=chain)
        models = [flat(made.server["params"])]
        for _ in range(15):
            made.run(range(6))
            models.append(flat(made.server["params"]))
        steps.append(torch.stack(models).diff(dim=0).square().mean().sqrt())
    assert float(steps[0]) == pytest.approx(1 / 6, rel=0.25)
    assert float(steps[1]) == pytest.approx(np.sqrt(3) / 6, rel=0.25)


def test_a_file_builds_the_round(tmp_path: Path) -> None:
    setup = set_up(Experiment.parse(GIVEN))
    assert setup.round.traits().sums_per_round == 2
    assert setup.participation.scheme == "available"
