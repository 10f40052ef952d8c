"""Matched averaging: a permuted copy is matched back exactly, and what cannot be matched is refused."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from atoll import rng, tree
from atoll.algorithms import FedAvg, FedMD, Scaffold
from atoll.core import UnitLayer
from atoll.engines import Loop, Threads
from atoll.errors import ConfigError
from atoll.reducers import Mean, Median
from atoll.rounds import Central, FedMA
from atoll.rounds.unit_matching import check_exchangeable, in_order, matching_orders, permuted
from atoll.tasks import Classification, Supervised
from atoll.tasks.models import CNN, LeNet, resnet18
from atoll.testing import check_round
from atoll.testing.assertions import distance
from atoll.testing.harness import federation, stack
from atoll.testing.problems import Problem, network
from atoll.tree import Tree

LR = 0.1


def perceptron(*widths: int) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise((5, *widths)):
            layers += [nn.Linear(a, b), nn.Tanh()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], 3))


def task(model: nn.Module, shape: Sequence[int] = (5,)) -> Supervised:
    x, y = rng.normal(rng.key("x"), (4, *shape)), torch.tensor([0, 1, 2, 0])
    return Supervised(model, Classification(3), {"x": x, "y": y, "mask": torch.ones(4)})


def problem(model: nn.Module) -> Problem:
    made = network()
    mine = task(model)
    return replace(made, task=mine, model=mine.init(rng.key(0)), keyed=False)


def shuffled(models: Tree, layers: tuple[UnitLayer, ...], seed: int) -> Tree:
    """Every row with the units of all hidden layers in another order."""
    for i, (layer, following) in enumerate(itertools.pairwise(layers)):
        n = len(next(iter(models.values())))
        order = torch.argsort(rng.uniform(rng.key(seed, i), (n, layer.outputs)), 1)
        models = permuted(models, layer, following, order)
    return models


def matched(models: Tree, weights: Tensor, layers: tuple[UnitLayer, ...], turns: int = 3) -> Tree:
    return in_order(models, layers, matching_orders(models, weights, layers, turns))


MODELS = {
    "perceptron": (perceptron(7, 6), (5,)),
    "cnn": (CNN((1, 8, 8), 3, 0.0, 0.0), (1, 8, 8)),
    "lenet": (LeNet((1, 16, 16), 3), (1, 16, 16)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_network_with_its_units_in_another_order_computes_the_same(name: str) -> None:
    model, shape = MODELS[name]
    made = task(model, shape)
    start = made.init(rng.key(0))
    rows = shuffled(tree.stack(start["params"], 1), made.unit_layers(), 3)
    assert distance(tree.rows(rows, 0), start["params"]) > 0.1
    batch = {"x": rng.normal(rng.key("z"), (6, *shape)), "mask": torch.ones(6)}
    a, b = (made.logits(p, start["buffers"], batch, False) for p in (start["params"], tree.rows(rows, 0)))
    assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_permuted_copies_are_matched_back_exactly_and_their_average_is_the_original(name: str) -> None:
    model, shape = MODELS[name]
    made = task(model, shape)
    params, layers = made.init(rng.key(0))["params"], made.unit_layers()
    copies = shuffled(tree.map(torch.clone, tree.stack(params, 3)), layers, 5)
    first = tree.map(lambda x, y: torch.cat([x[None], y]), params, copies)  # the heaviest is the reference
    together = matched(first, torch.tensor([2.0, 1.0, 1.0, 1.0]), layers)
    for row in range(4):
        assert all(torch.equal(together[k][row], params[k]) for k in params)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 1000))
def test_matching_never_changes_what_networks_compute(width: int, clients: int, seed: int) -> None:
    made = task(perceptron(width, 4))
    params, layers = made.init(rng.key(0))["params"], made.unit_layers()
    rows = {k: x + 0.5 * rng.normal(rng.key(seed, k), (clients, *x.shape)) for k, x in params.items()}
    batch = {"x": rng.normal(rng.key("z"), (5, 5)), "mask": torch.ones(5)}
    after = matched(rows, torch.ones(clients), layers)
    for i in range(clients):
        a, b = (made.logits(tree.rows(r, i), {}, batch, False) for r in (rows, after))
        assert torch.allclose(a, b, atol=1e-4)


def assignment_cost(reference: Tensor, own: Tensor, order: Sequence[int]) -> float:
    return float(((reference - own[list(order)]) ** 2).sum())


def test_the_pairing_is_the_best_of_all_pairings() -> None:
    made = task(perceptron(4))
    params, layers = made.init(rng.key(0))["params"], made.unit_layers()
    rows = {k: x + rng.normal(rng.key("n", k), (2, *x.shape)) for k, x in params.items()}
    after = matched(rows, torch.tensor([2.0, 1.0]), layers, turns=1)
    units = torch.cat([rows["0.weight"], rows["0.bias"][..., None]], 2)
    costs = {p: assignment_cost(units[0], units[1], p) for p in itertools.permutations(range(4))}
    best = min(costs, key=lambda p: costs[p])
    assert torch.equal(after["0.weight"][1], rows["0.weight"][1][list(best)])
    assert torch.equal(after["2.weight"][1], rows["2.weight"][1][:, list(best)])


def run(round: FedMA | Central, engine: object = stack, rounds: int = 2) -> Tree:
    made = problem(perceptron(6))
    if isinstance(round, FedMA):
        round = round.for_task(made.task, made.model)  # type: ignore[assignment]
    end = federation(made, FedAvg(made.task, LR), engine, round=round)  # type: ignore[arg-type]
    for r in range(rounds):
        end.run(range(6) if r == 0 else (1, 4, 5))
    return end.server


def test_without_matching_and_from_one_start_it_is_fedavg() -> None:
    assert distance(run(FedMA(own_start=False, match=False)), run(Central())) < 1e-6


def test_gently_trained_from_one_start_units_stay_where_they_are() -> None:
    assert distance(run(FedMA(own_start=False)), run(Central())) < 1e-6


def test_own_starts_are_other_draws_and_matching_them_matters() -> None:
    ends = [run(FedMA(match=match), rounds=1) for match in (True, False)]
    assert distance(ends[0]["params"], ends[1]["params"]) > 0.01
    made = problem(perceptron(6))
    end = federation(made, FedAvg(made.task, LR), stack, round=FedMA().for_task(made.task, made.model))
    sent, _ = end.round.broadcast(end.context([0, 1]), end.state, torch.tensor([0, 1]))
    rows, start = sent["params"]["0.weight"], made.model["params"]["0.weight"]
    assert not torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0].flatten().sort().values, start.flatten().sort().values)
    end.run([0, 1])
    sent, _ = end.round.broadcast(end.context([0, 1]), end.state, torch.tensor([0, 1]))
    assert torch.equal(sent["params"]["0.weight"][1], end.server["params"]["0.weight"])


def test_it_is_the_same_on_every_engine() -> None:
    ends = [run(FedMA(), engine) for engine in (Loop, stack, Threads)]
    assert max(distance(end, ends[0]) for end in ends[1:]) < 1e-4


@pytest.mark.parametrize("own_start", [True, False])
def test_it_keeps_the_contract_of_rounds(own_start: bool) -> None:
    assert "both halves of every transform" in check_round(FedMA(own_start=own_start))


@pytest.mark.parametrize(
    ("model", "shape", "why"),
    [
        (resnet18((1, 8, 8), 3), (1, 8, 8), "which normalises"),
        (nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), (5,), "which normalises"),
        (nn.Linear(5, 3), (5,), "one layer of weights"),
    ],
)
def test_what_cannot_be_matched_is_refused_with_the_reason(model: nn.Module, shape: tuple[int, ...], why: str) -> None:
    made = task(model, shape)
    with pytest.raises(ConfigError, match=why):
        FedMA().for_task(made, made.init(rng.key(0)))


def test_layers_that_read_each_others_units_are_refused() -> None:
    layers = (UnitLayer("a", "linear", 5, 1, 4, ("a",)), UnitLayer("b", "linear", 3, 1, 2, ("b",)))
    with pytest.raises(ConfigError, match="'b' reads others"):
        check_exchangeable(layers, {"params": {"a": torch.ones(1), "b": torch.ones(1)}, "buffers": {}})


def test_other_reducers_and_algorithms_are_refused() -> None:
    made = problem(perceptron(6))
    with pytest.raises(ConfigError, match="Leave reducer out"):
        FedMA().reducer(Median())
    assert FedMA().reducer(Mean())
    for algorithm in (Scaffold(made.task, LR, 6), FedMD(made.task, LR, made.public())):
        with pytest.raises(ConfigError, match="fedavg or fedprox"):
            FedMA().check(algorithm)
