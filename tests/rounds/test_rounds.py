"""Rounds: one server, or none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll import rng, tree
from atoll.algorithms.fedavg import FedAvg
from atoll.algorithms.feddyn import FedDyn
from atoll.algorithms.fedprox import FedProx
from atoll.algorithms.scaffold import Scaffold
from atoll.algorithms.wrappers import LocalStatistics, Statistics
from atoll.core import Algorithm
from atoll.engines import Vector
from atoll.errors import ConfigError, SpecError
from atoll.rounds import Central, Gossip, Recompute
from atoll.rounds.decentralised import Topology, mixing_of
from atoll.rounds.decentralised.mixing_matrix import MixingMatrix
from atoll.testing.assertions import distance
from atoll.testing.harness import federation
from atoll.testing.problems import Problem, flat, mirrored, network, optimum, quadratics
from atoll.tree import Tree

# Gossip.


class Alone(Gossip):
    """Nodes without neighbours."""

    def matrix(self, nodes: int, number: int, key: Tensor) -> MixingMatrix:
        return mixing_of(Topology.of(nodes, []), "metropolis")


def gossip(problem: Problem, algorithm: Algorithm, topology: Gossip, rounds: int, who: list[int] | None = None) -> Tree:
    """Every node's state after so many rounds."""
    made = federation(problem, algorithm, round=topology)
    for _ in range(rounds):
        made.run(who or range(6))
    return made.server


def simulated(tmp_path: Path, name: str, round: Any, **changed: Any) -> atoll.Run:
    x, y = rng.normal(rng.key("x"), (30, 5)), rng.bits(rng.key("y"), (30,)) % 3
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 3))
    options: dict[str, Any] = {"algorithm": {"name": "fedprox", "lr": 0.1, "mu": 0.1}, "engine": "vector"}
    return atoll.simulate(
        model,
        (x, y),
        clients=list(torch.arange(30).split(6)),
        rounds=4,
        batch=4,
        evaluate={"clients": 0},
        round=round,
        out=tmp_path / name,
        **{**options, **changed},
    )


def test_gossip_among_all_with_clients_of_one_size_is_central_averaging(tmp_path: Path) -> None:
    central = simulated(tmp_path, "central", "central")
    gossiped = simulated(tmp_path, "gossip", {"name": "gossip", "graph": "complete"})
    assert distance(gossiped.params, central.params) < 1e-5
    ring = simulated(tmp_path, "ring", {"name": "gossip", "graph": "ring"})
    assert distance(ring.params, central.params) > 1e-4


@pytest.mark.parametrize("engine", ["loop", "threads"])
def test_gossip_is_the_same_on_every_engine(engine: str, tmp_path: Path) -> None:
    ring = {"name": "gossip", "graph": "ring"}
    a, b = simulated(tmp_path, "a", ring), simulated(tmp_path, "b", ring, engine=engine)
    assert distance(a.params, b.params) < 1e-5


def test_a_node_runs_the_client_program_of_a_central_round() -> None:
    """With nobody to mix with, each node ends where the client of a central round does."""
    problem = network()
    algorithm = FedProx(problem.task, 0.1, mu=0.3)
    made = federation(problem, algorithm, Vector, round=Alone())  # which trains the longest first
    made.run([0, 3, 5])
    for node in (0, 3, 5):
        central = federation(problem, algorithm, Vector)
        central.run([node])
        assert distance(tree.rows(made.server, node), central.server) < 1e-6
    for node in (1, 2, 4):
        assert distance(tree.rows(made.server, node), problem.model) == 0.0


@pytest.mark.slow
def test_a_ring_reaches_consensus_near_the_truth() -> None:
    problem = quadratics()
    servers = gossip(problem, FedAvg(problem.task, 0.01), Gossip(), 150)
    nodes = torch.stack([flat(tree.rows(servers["params"], i)) for i in range(6)]).double()
    start = torch.stack([flat(problem.model["params"])] * 6).double()
    steps = torch.tensor([1.0, 3.0, 2.0, 4.0, 2.0, 3.0])  # of each client: small rates weigh by them
    truth = optimum(problem, steps)
    assert float((nodes.mean(0) - truth).norm() / (start[0] - truth).norm()) < 0.05
    assert float((nodes - nodes.mean(0)).norm(dim=1).max() / (start[0] - truth).norm()) < 0.1
    assert distance({"w": flat(Gossip().model({"server": servers})["params"])}, {"w": nodes.mean(0)}) < 1e-6


def test_mixing_alone_keeps_the_mean_and_reaches_it() -> None:
    problem = quadratics()
    algorithm = FedAvg(problem.task, 1e-12)
    made = federation(problem, algorithm, round=Gossip())
    spread = torch.arange(6.0)[:, None]
    made.state["server"]["params"] = tree.map(lambda x: x + spread, made.server["params"])
    mean = Gossip().model(made.state)["params"]
    for _ in range(60):
        made.run(range(6))
    assert distance(Gossip().model(made.state)["params"], mean) < 1e-5
    assert distance(made.server["params"], tree.stack(mean, 6)) < 1e-3


def test_nodes_that_do_not_train_still_mix() -> None:
    problem = quadratics()
    servers = gossip(problem, FedAvg(problem.task, 0.1), Gossip(), 1, who=[0])
    moved = [distance(tree.rows(servers["params"], i), problem.model["params"]) > 1e-3 for i in range(6)]
    assert moved == [True, True, False, False, False, True]


@pytest.mark.parametrize("build", [Scaffold, FedDyn])
def test_gossip_refuses_what_needs_a_server(build: Any) -> None:
    problem = network()
    with pytest.raises(ConfigError, match=r"and gossip has no server\. Use round.name = 'central'"):
        Gossip().check(build(problem.task, 0.1, 6))


def test_gossip_refuses_what_needs_a_server_also_when_it_is_wrapped() -> None:
    problem = network()
    with pytest.raises(ConfigError, match="gossip has no server"):
        Gossip().check(LocalStatistics(Scaffold(problem.task, 0.1, 6)))


def test_gossip_refuses_data_that_lies_in_one_place(tmp_path: Path) -> None:
    given = {"data": "digits", "partition": {"name": "iid", "clients": 4}, "round": "gossip", "rounds": 1}
    with pytest.raises(ConfigError, match=r"Centralised trains on all data in one place, and gossip has no such place"):
        atoll.run({**given, "algorithm": {"name": "centralised", "lr": 0.1}}, tmp_path / "run")


def test_updates_that_hold_nothing_can_be_clipped_but_not_hidden(tmp_path: Path) -> None:
    given = {"data": "digits", "partition": {"name": "iid", "clients": 4}, "rounds": 1, "local": {"max_steps": 1}}
    given |= {"algorithm": {"name": "local", "lr": 0.1}}
    clip = {"name": "clip_per_layer", "max_norm": 0.1}
    assert atoll.run({**given, "transform": [clip]}, tmp_path / "run").status == "finished"
    noise = {"name": "approximate_local", "mechanism": "privunit", "epsilon": 1.0}
    chain = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}, noise]
    with pytest.raises(ConfigError, match="local sends nothing of this model"):
        atoll.run({**given, "transform": chain}, tmp_path / "other")


def test_noise_for_privacy_is_refused_under_gossip(tmp_path: Path) -> None:
    layers = [
        "equal_weights",
        {"name": "clip_l2", "max_norm": 1.0},
        {"name": "gaussian_noise", "noise_multiplier": 1.0},
    ]
    with pytest.raises(SpecError, match="protects a sum"):
        simulated(tmp_path, "dp", "gossip", transforms=layers)


def test_a_reducer_that_gossip_would_not_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises((ConfigError, SpecError)):
        simulated(tmp_path, "median", "gossip", reducer="median")


# The central round.


def test_a_round_in_which_nobody_can_be_used_changes_nothing() -> None:
    problem = quadratics()
    broken = {**problem.columns, "y": problem.columns["y"] * float("nan")}
    made = federation(replace(problem, columns=broken), FedAvg(problem.task, 0.1))
    outcome = made.run(range(6))
    assert not outcome.changed
    assert not bool(outcome.columns().finite.any())
    assert distance(made.server, problem.model) == 0.0


def test_statistics_are_reestimated_at_the_new_model() -> None:
    problem = network()
    plain = federation(problem, FedAvg(problem.task, 0.1))
    recompute = Recompute.around(Central(), Statistics(problem.task), problem.model["buffers"])
    made = federation(problem, FedAvg(problem.task, 0.1), round=recompute)
    plain.run(range(6))
    made.run(range(6))
    assert distance(made.server["params"], plain.server["params"]) == 0.0
    at_new = replace(problem, model={**problem.model, "params": plain.server["params"]})
    again = federation(at_new, Statistics(problem.task))
    again.run(range(6))
    assert distance(made.server["buffers"], again.server["buffers"]) < 1e-6


def test_recomputing_statistics_is_refused_where_every_client_has_a_model() -> None:
    problem = network()
    with pytest.raises(ConfigError, match=r"'recompute' estimates .* Use 'average' or 'local'"):
        Recompute.around(Gossip(), Statistics(problem.task), problem.model["buffers"])


def test_a_mirrored_problem_is_the_same_problem() -> None:
    """The kit's own mirror: the optimum of the image is the image of the optimum."""
    problem, equal = quadratics(), torch.ones(6)
    assert torch.allclose(optimum(mirrored(problem, 1.0), equal), 1.0 - optimum(problem, equal), atol=1e-5)
