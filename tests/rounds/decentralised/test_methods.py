"""Methods without a server: against plain NumPy on quadratics, and against each other where they must agree."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll import rng, tree
from atoll.algorithms.fedavg import FedAvg
from atoll.core import Chain, Round, Spec
from atoll.data import Partition
from atoll.errors import ConfigError
from atoll.reducers import Median
from atoll.rounds import Choco, Epidemic, ExactDiffusion, Gossip, GradientTracking, PushSum
from atoll.rounds.decentralised import (
    CompleteGraph,
    ExponentialGraph,
    FileGraph,
    PeerGraph,
    RandomMatchingGraph,
    RingGraph,
    StarGraph,
    TorusGraph,
    mixing_of,
)
from atoll.rounds.decentralised.changing_graphs import random_pushes
from atoll.rounds.decentralised.choco import _codec, _whole
from atoll.rounds.decentralised.push_sum import _times
from atoll.testing.assertions import distance
from atoll.testing.harness import Federation, federation, stack
from atoll.testing.problems import SIZES, Problem, Quadratics, flat, optimum, quadratics
from atoll.transforms import TRANSFORMS, TopK

N, LR = len(SIZES), 0.1
Floats = np.ndarray[Any, np.dtype[np.float64]]


def nodes(made: Federation) -> Floats:
    """Every node's parameters, (N, d)."""
    return torch.stack([flat(tree.rows(made.server["params"], i)) for i in range(N)]).double().numpy()


def played(round: Round, rounds: int, problem: Problem | None = None, lr: float = LR) -> Federation:
    problem = problem or quadratics()
    made = federation(problem, FedAvg(problem.task, lr), engine=stack, round=round)
    for _ in range(rounds):
        made.run(range(N))
    return made


def one_step(problem: Problem) -> Problem:
    """The same quadratics, in which every client has one example and so takes one step."""
    first = [[int(problem.partition.of(i)[0])] for i in range(N)]
    return replace(problem, partition=Partition.from_lists(first))


class Plain:
    """Quadratics in NumPy: where each node's local training leads from its own model."""

    def __init__(self, problem: Problem, steps: list[int] | None = None) -> None:
        first = [int(problem.partition.of(i)[0]) for i in range(N)]
        d = Quadratics.WIDTH
        self.a = problem.columns["x"][first].double().reshape(N, d, d).numpy()
        self.b = problem.columns["y"][first].double().numpy()
        self.steps = steps or [-(-n // 2) for n in SIZES]
        self.start = np.stack([flat(problem.model["params"]).double().numpy()] * N)

    def trained(self, x: Floats) -> Floats:
        x = x.copy()
        for i in range(N):
            for _ in range(self.steps[i]):
                x[i] -= LR * self.a[i] @ (x[i] - self.b[i])
        return x


W = mixing_of(RingGraph().topology(N, 0), "metropolis").sparse.toarray()


def gossip(plain: Plain, rounds: int) -> Floats:
    x = plain.start
    for _ in range(rounds):
        x = W @ plain.trained(x)
    return x


def push_sum(plain: Plain, rounds: int, graph: PeerGraph | None = None) -> Floats:
    p = mixing_of((graph or ExponentialGraph()).topology(N, 0), "uniform", "columns").sparse.toarray()
    x, w = plain.start, np.ones((N, 1))
    for _ in range(rounds):
        z = x / w
        x, w = p @ (x + plain.trained(z) - z), p @ w
    return x / w


def gradient_tracking(plain: Plain, rounds: int) -> Floats:
    x, y, last = plain.start, np.zeros_like(plain.start), np.zeros_like(plain.start)
    for _ in range(rounds):
        delta = plain.trained(x) - x
        y = W @ y + delta - last
        x, last = W @ (x + y), delta
    return x


def d2(plain: Plain, rounds: int) -> Floats:
    lazy = (np.eye(N) + W) / 2
    before, x = None, plain.start
    for _ in range(rounds):
        delta = plain.trained(x) - x
        step = x + delta if before is None else 2 * x - before[0] + delta - before[1]
        before, x = (x, delta), lazy @ step
    return x


def choco(plain: Plain, rounds: int) -> Floats:
    """The larger half of each of the three tensors, gamma 0.5."""
    x, copy = plain.start, plain.start
    for _ in range(rounds):
        x = plain.trained(x)
        q = np.zeros_like(x)
        for i in range(N):
            for part in (slice(0, 2), slice(2, 3), slice(3, 4)):
                difference = (x - copy)[i, part]
                chosen = np.argsort(-np.abs(difference))[: -(-len(difference) // 2)]
                q[i, part.start + chosen] = difference[chosen]
        copy = copy + q
        x = x + 0.5 * (W - np.eye(N)) @ copy
    return x


def epidemic(plain: Plain, rounds: int) -> Floats:
    x = plain.start
    for number in range(rounds):
        pushes = random_pushes(rng.fold_name(rng.key("round", number), "pushes"), N, 2)
        x = mixing_of(pushes, "uniform").sparse.toarray() @ plain.trained(x)
    return x


ORACLES: dict[str, tuple[Round, Callable[[Plain, int], Floats]]] = {
    "gossip": (Gossip(RingGraph()), gossip),
    "push_sum": (PushSum(ExponentialGraph()), push_sum),
    "gradient_tracking": (GradientTracking(RingGraph()), gradient_tracking),
    "d2": (ExactDiffusion(RingGraph()), d2),
    "choco": (Choco(RingGraph(), compressor=TopK(share=0.5), gamma=0.5), choco),
    "epidemic": (Epidemic(2), epidemic),
}


@pytest.mark.parametrize("name", ORACLES)
def test_every_method_is_its_formula_in_plain_numpy(name: str) -> None:
    round, oracle = ORACLES[name]
    expected = oracle(Plain(quadratics()), 6)
    assert np.abs(nodes(played(round, 6)) - expected).max() < 1e-5
    assert np.abs(expected - Plain(quadratics()).start).max() > 0.1


def test_push_sum_is_right_on_a_directed_graph_that_is_not_regular(tmp_path: Path) -> None:
    (tmp_path / "d.txt").write_text("0 1\n1 2\n2 3\n3 4\n4 5\n5 0\n0 3\n")
    graph = FileGraph(str(tmp_path / "d.txt"), directed=True)
    expected = push_sum(Plain(quadratics()), 6, graph)
    assert np.abs(nodes(played(PushSum(graph), 6)) - expected).max() < 1e-5
    made = federation(quadratics(), FedAvg(quadratics().task, 1e-12), engine=stack, round=PushSum(graph))
    spread = torch.arange(6.0)[:, None]
    made.state["server"]["params"] = tree.map(lambda x: x + spread, made.server["params"])
    mean = made.round.model(made.state)["params"]
    for _ in range(120):
        made.run(())
    assert distance(made.server["params"], tree.stack(mean, N)) < 1e-4


def test_whole_numbers_are_pushed_as_numbers_and_rounded_at_the_end() -> None:
    rows = {"n": torch.tensor([10, 20, -3])}
    shared = _times(rows, torch.tensor([0.9, 1.1, 0.5]))
    assert torch.allclose(shared["n"], torch.tensor([9.0, 22.0, -1.5], dtype=torch.float64))


# Identities.


@pytest.mark.parametrize("weights", ["metropolis", "uniform"])
def test_a_complete_graph_is_fedavg_with_equal_weights(weights: Any) -> None:
    round = Gossip(CompleteGraph(), weights)
    central = federation(quadratics(), FedAvg(quadratics().task, LR), chain=_equal())
    made = federation(quadratics(), FedAvg(quadratics().task, LR), round=round)
    for _ in range(4):
        central.run(range(N))
        made.run(range(N))
    assert np.abs(nodes(made) - flat(central.server["params"]).double().numpy()).max() < 1e-5


def test_choco_without_loss_and_with_a_whole_step_is_gossip() -> None:
    whole = Choco(RingGraph(), compressor=TopK(share=1.0), gamma=1.0)
    assert np.abs(nodes(played(whole, 5)) - nodes(played(Gossip(RingGraph()), 5))).max() < 1e-5


def test_push_sum_on_an_undirected_regular_graph_is_gossip() -> None:
    for graph in (RingGraph(), TorusGraph()):
        assert np.abs(nodes(played(PushSum(graph), 5)) - nodes(played(Gossip(graph), 5))).max() < 1e-5


@pytest.mark.parametrize("round", [GradientTracking(CompleteGraph()), ExactDiffusion(CompleteGraph(), lazy=False)])
def test_where_one_exchange_is_the_mean_nothing_is_left_to_correct(round: Round) -> None:
    assert np.abs(nodes(played(round, 4)) - nodes(played(Gossip(CompleteGraph()), 4))).max() < 1e-4


def test_unlike_clients_agree_on_the_optimum_at_a_constant_rate_where_gossip_does_not() -> None:
    problem = one_step(quadratics())
    truth = optimum(problem, torch.ones(N)).numpy()
    off = [
        np.abs(nodes(played(round, 100, problem)) - truth).max()
        for round in (GradientTracking(RingGraph()), ExactDiffusion(RingGraph()), Gossip(RingGraph()))
    ]
    assert max(off[:2]) < 3e-3 < 0.05 < off[2]


@pytest.mark.slow
def test_tracking_finds_the_optimum_when_half_of_the_nodes_train_in_turn() -> None:
    problem = one_step(quadratics())
    made = federation(problem, FedAvg(problem.task, 0.05), engine=stack, round=GradientTracking(RingGraph()))
    for number in range(300):
        made.run([number % 2, number % 2 + 2, number % 2 + 4])
    assert np.abs(nodes(made) - optimum(problem, torch.ones(N)).numpy()).max() < 1e-3


def test_compressed_differences_still_reach_consensus_on_the_mean() -> None:
    made = federation(quadratics(), FedAvg(quadratics().task, 1e-12), engine=stack, round=Choco(RingGraph(), gamma=0.3))
    spread = torch.arange(6.0)[:, None]
    made.state["server"]["params"] = tree.map(lambda x: x + spread, made.server["params"])
    mean = made.round.model(made.state)["params"]
    for _ in range(150):
        made.run(())
    assert distance(made.round.model(made.state)["params"], mean) < 1e-4
    assert distance(made.server["params"], tree.stack(mean, N)) < 0.05


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_a_gamma_that_is_left_out_suits_the_compressor(share: float, tmp_path: Path) -> None:
    """Random places bring less than the largest ones do: with 0.4 these runs diverge."""
    file: dict[str, Any] = {
        "rounds": 60,
        "engine": "vector",
        "data": "digits",
        "partition": {"name": "dirichlet", "clients": 12, "alpha": 0.3},
        "task": {"model": "linear"},
        "local": {"batch": 32, "max_steps": 2},
        "algorithm": {"name": "fedavg", "lr": 0.1},
        "evaluate": {"clients": 0, "every": 60},
    }
    random = {"name": "rand_k", "share": share}

    def distances(**more: Any) -> list[float]:
        run = atoll.run({**file, "round": {"name": "choco", "compressor": random, **more}}, tmp_path / str(more))
        return [line["diagnostics"]["consensus_distance"] for line in run.history]

    own, too_much = distances(), distances(gamma=1.0)
    assert own[-1] < 1.5 * own[30]
    assert own[-1] < 0.2 * too_much[-1]


def test_what_a_compressor_keeps_is_measured_of_normal_numbers() -> None:
    shapes = (("w", torch.Size([400, 10])),)
    kept = {name: _codec(TRANSFORMS[name](**options), shapes).kept for name, options in KEPT.items()}
    assert kept["rand_k"] == pytest.approx(0.1, abs=0.03)
    assert kept["top_k"] == pytest.approx(0.44, abs=0.03)  # of the largest tenth: 2 (z phi(z) + 0.05), z = 1.645
    assert kept["half"] == pytest.approx(1.0, abs=1e-4)


KEPT: dict[str, dict[str, Any]] = {"rand_k": {"share": 0.1}, "top_k": {"share": 0.1}, "half": {}}


@pytest.mark.parametrize("name", ["rand_k", "qsgd", "half", "drive", "uniform_quantise"])
def test_choco_takes_every_kind_of_compressor(name: str) -> None:
    from tests.testing.test_conformance import TRANSFORM_OPTIONS

    compressor = TRANSFORMS[name](**TRANSFORM_OPTIONS[name])
    made = played(Choco(RingGraph(), compressor=compressor, gamma=0.3), 3)
    assert np.isfinite(nodes(made)).all()


# What is said.


def test_a_round_says_how_far_apart_nodes_are_and_what_travelled() -> None:
    made = federation(quadratics(), FedAvg(quadratics().task, LR), round=Gossip(StarGraph()))
    outcome = made.run(range(N))
    x = nodes(made)
    apart = np.sqrt(((x - x.mean(0)) ** 2).sum(1).mean())
    assert float(outcome.diagnostics["consensus_distance"]) == pytest.approx(apart, rel=1e-4)
    edge = int(outcome.diagnostics["bytes_per_edge"])
    assert outcome.bytes() == {"up": 10 * edge, "down": 10 * edge}
    assert int(outcome.diagnostics["edges"]) == 10


def test_two_models_travel_with_tracking_a_number_more_with_push_sum_and_less_with_choco() -> None:
    def edge(round: Round) -> float:
        made = federation(quadratics(), FedAvg(quadratics().task, LR), round=round)
        return float(made.run(range(N)).diagnostics["bytes_per_edge"])

    one = edge(Gossip(RingGraph()))
    assert edge(ExactDiffusion(RingGraph())) == one
    assert edge(GradientTracking(RingGraph())) > one + 4 * Quadratics.WIDTH
    assert one < edge(PushSum(RingGraph())) < edge(GradientTracking(RingGraph()))


def test_the_bytes_of_compressed_messages_are_those_of_each_node() -> None:
    made = federation(quadratics(), FedAvg(quadratics().task, LR), round=Choco(StarGraph()))
    outcome = made.run(range(N))
    messages = outcome.diagnostics["message_bytes"]
    assert messages.shape == (N,)
    assert outcome.bytes()["up"] == int(5 * messages[0] + messages[1:].sum())


def test_the_multiple_that_is_taken_is_among_the_bytes_of_a_message() -> None:
    """Of `half` nothing else in a message could say it."""
    half = TRANSFORMS["half"]()
    made = federation(quadratics(), FedAvg(quadratics().task, LR), round=Choco(RingGraph(), compressor=half))
    chain, _ = Chain((half,)).bind(Spec())
    like = tree.rows(made.server["params"], 0)
    state, own = chain.init(like)
    fixed = chain.upload(like, state, own).fixed_bytes
    assert fixed is not None
    assert float(made.run(range(N)).diagnostics["bytes_per_edge"]) == fixed + 4 + _whole(made.server["buffers"])


def test_changing_graphs_mix_with_others_in_other_rounds() -> None:
    made = federation(quadratics(), FedAvg(quadratics().task, LR), round=Gossip(RandomMatchingGraph()))
    for number in range(3):
        before = nodes(made)
        made.run(range(N))
        pairs = RandomMatchingGraph().topology(N, number).pairs()
        now = nodes(made)
        assert all(np.allclose(now[a], now[b]) for a, b in pairs)
        assert not np.allclose(before, now)


# What is refused.


def test_copies_of_neighbours_need_neighbours_that_stay() -> None:
    for method in (Choco, ExactDiffusion):
        with pytest.raises(ConfigError, match=r"this graph has others in other rounds.* 'gossip'"):
            method(RandomMatchingGraph()).check_population(6)


def test_more_receivers_than_others_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"round.fanout: 6 receivers, .* Use at most 5"):
        Epidemic(6).check_population(6)


def test_a_compressor_whose_other_half_is_off_is_one_that_neighbours_undo() -> None:
    """The advice that is given of ternary."""
    one_way = TRANSFORMS["ternary"](share=0.5, both_ways=False)
    assert np.isfinite(nodes(played(Choco(RingGraph(), compressor=one_way), 3))).all()


def test_a_transform_that_needs_what_is_not_there_is_refused_under_its_name() -> None:
    with pytest.raises(ConfigError, match=r"^round\.compressor: adaptive_clip is no compressor .* Use top_k"):
        Choco(compressor=TRANSFORMS["adaptive_clip"]())


@pytest.mark.parametrize("name", ["clip_l2", "sketch", "ternary"])
def test_what_is_no_compressor_is_refused_by_choco(name: str) -> None:
    from tests.testing.test_conformance import TRANSFORM_OPTIONS

    with pytest.raises(ConfigError, match=r"round.compressor: .* Use top_k"):
        Choco(compressor=TRANSFORMS[name](**TRANSFORM_OPTIONS[name]))


@pytest.mark.parametrize("method", [Gossip, PushSum, GradientTracking, ExactDiffusion, Choco, Epidemic])
def test_a_reducer_that_would_not_be_used_is_refused(method: Any) -> None:
    with pytest.raises(ConfigError, match=r"mixes neighbours by its graph, so Median would not be used"):
        method().reducer(Median())


def _equal() -> Any:
    return Chain((TRANSFORMS["equal_weights"](),))
