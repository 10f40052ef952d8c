"""Rounds of clients that have no examples: nothing to take a mean of is not an update."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import atoll
from atoll import rng
from atoll.algorithms.fedavg import FedAvg
from atoll.data import Partition
from atoll.engines import Loop, Vector
from atoll.testing.assertions import distance
from atoll.testing.harness import EngineFactory, federation
from atoll.testing.problems import network
from atoll.tree import Tree
from tests.support.examples import few_examples

X = rng.normal(rng.key("x"), (40, 3))
Y = (X[:, 0] > 0).long()


@dataclass(frozen=True)
class Lopsided:
    """A partitioner of one's own: two clients hold everything, three nothing."""

    def __call__(self, labels: Any, keys: Any, examples: int, key: Tensor) -> Partition:
        return Partition(torch.tensor([0, 20, 40, 40, 40, 40]), torch.arange(40), "lopsided", 0)


def simulated(rounds: int = 8, **changed: Any) -> atoll.Run:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
    options: dict[str, Any] = {"algorithm": {"name": "fedavg", "lr": 0.1}, "cohort": 2, "engine": "vector"}
    clients = {"name": f"{__name__}:Lopsided"}
    return atoll.simulate(
        model, (X, Y), (X, Y), clients=clients, rounds=rounds, batch=8, device="cpu", **{**options, **changed}
    )


@pytest.mark.parametrize(
    ("engine", "algorithm"), [("loop", "fedavg"), ("vector", "fedavg"), ("vector", "fedadam"), ("threads", "fedavg")]
)
def test_a_round_of_clients_without_examples_leaves_the_model_and_says_so(engine: str, algorithm: str) -> None:
    done = simulated(engine=engine, algorithm={"name": algorithm, "lr": 0.1})
    empty = [set(e["cohort"]["ids"]) <= {2, 3, 4} for e in done.history]
    assert any(empty[1:])
    assert not all(empty)
    for before, now, nothing in zip(done.history, done.history[1:], empty[1:], strict=False):
        assert (before["model"] == now["model"]) == nothing
        assert ("unchanged" in now) == nothing
        assert ("train_loss" in now) != nothing
        assert now["loss"] == now["loss"]
    assert "unchanged" not in done.final


def test_nor_does_a_round_where_all_others_were_left_out() -> None:
    x = X.clone()
    x[:20] = X[:20].sign() * 3.3e38
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
    clients = {"name": f"{__name__}:Lopsided"}
    done = atoll.simulate(
        model, (x, Y), (X, Y), clients=clients, algorithm={"name": "fedavg", "lr": 0.1}, rounds=8, cohort=2,
        device="cpu", on_divergence="drop", evaluate={"clients": 0},
    )  # fmt: skip
    wild = [e for e in done.history if set(e["cohort"]["ids"]) <= {0, 2, 3, 4}]
    assert any("dropped" in e for e in wild)
    assert all("unchanged" in e for e in wild)
    assert all(bool(torch.isfinite(v).all()) for v in done.params.values())


def test_a_node_without_examples_only_mixes() -> None:
    done = simulated(rounds=3, cohort="everyone", round={"name": "gossip", "graph": "complete"})
    assert all(bool(torch.isfinite(v).all()) for v in done.params.values())
    two = simulated(rounds=1, cohort="everyone", round={"name": "gossip", "graph": "complete"})
    central = simulated(rounds=1, cohort="everyone")  # whose two clients count the same, and the others not at all
    start = simulated(rounds=1, algorithm={"name": "fedavg", "lr": 1e-12}, cohort="everyone").params
    for name in start:  # two of five nodes moved, so their mean moved two fifths as far
        assert torch.allclose(two.params[name] - start[name], 0.4 * (central.params[name] - start[name]), atol=1e-6)


@cache
def update(ids: tuple[int, ...], empty: frozenset[int], engine: EngineFactory) -> tuple[Tree, bool]:
    """The server after a round of these clients, some of which hold nothing; and whether it changed."""
    problem = network()
    held = [problem.partition.of(i)[: 0 if i in empty else None] for i in range(6)]
    offsets = torch.tensor([0, *(len(rows) for rows in held)]).cumsum(0)
    partition = Partition(offsets, torch.cat(held))
    made = federation(replace(problem, partition=partition), FedAvg(problem.task, 0.1), engine)
    outcome = made.run(ids)
    return made.server, outcome.changed


@few_examples
@given(st.frozensets(st.integers(0, 5), max_size=5), st.sampled_from([Loop, Vector]))
def test_whoever_has_no_examples_might_as_well_have_stayed_at_home(
    empty: frozenset[int], engine: EngineFactory
) -> None:
    everyone = tuple(range(6))
    server, changed = update(everyone, empty, engine)
    there = tuple(i for i in everyone if i not in empty)
    assert changed
    assert distance(server, update(there, frozenset(), engine)[0]) < 1e-6


@pytest.mark.parametrize("engine", [Loop, Vector])
def test_a_cohort_of_clients_without_examples_changes_nothing(engine: EngineFactory) -> None:
    server, changed = update((1, 4), frozenset({1, 4}), engine)
    assert not changed
    assert distance(server, network().model) == 0.0
