"""SCAFFOLD as NIID-Bench's code runs it: a named mistake, held to a slow loop written from its description."""

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import atoll
from atoll import tree
from atoll.algorithms.fedavg import FedAvg
from atoll.algorithms.optimizers import sgd
from atoll.algorithms.published import scaffold
from atoll.algorithms.scaffold import Scaffold
from atoll.errors import ConfigError, ConformanceError
from atoll.experiment import Experiment
from atoll.runs import run_together
from atoll.testing import check_algorithm
from atoll.testing.assertions import distance
from atoll.testing.harness import some, train
from atoll.testing.problems import Problem, network
from tests.algorithms.test_algorithms import LR, perceptron, plain, same

Published = partial(scaffold, profile="niid-bench")
Named = dict[str, Tensor]


def published_loop(problem: Problem, model: nn.Module, cohorts: Any, rounds: int, **sgd: float) -> tuple[Named, Named]:
    """The server's model and control after so many rounds: torch.optim, deep copies, and dictionaries of tensors."""
    server, parties = copy.deepcopy(model), problem.partition.size
    c = {k: torch.zeros_like(v) for k, v in server.named_parameters()}
    own = [{k: torch.zeros_like(v) for k, v in c.items()} for _ in range(parties)]
    for r in range(rounds):
        ids = cohorts(r)
        before = {k: v.detach().clone() for k, v in server.named_parameters()}
        examples = sum(len(problem.partition.of(i)) for i in ids)
        mean, change = ({k: torch.zeros_like(v) for k, v in c.items()} for _ in range(2))
        for i in ids:
            client, rows = copy.deepcopy(server), problem.partition.of(i)
            optimizer, steps = torch.optim.SGD(client.parameters(), LR, **sgd), 0
            for batch in rows.split(problem.batch):
                optimizer.zero_grad()
                F.cross_entropy(client(problem.columns["x"][batch]), problem.columns["y"][batch]).backward()
                optimizer.step()  # the plain gradient, with momentum
                with torch.no_grad():
                    for k, p in client.named_parameters():
                        p -= LR * (c[k] - own[i][k])  # the correction beside it
                steps += 1
            for k, p in client.named_parameters():
                new = own[i][k] - c[k] + (before[k] - p.detach()) / (steps * LR)  # steps, not gradients
                change[k] += new - own[i][k]
                own[i][k] = new
                mean[k] += p.detach() * len(rows) / examples
        c = {k: c[k] + change[k] / parties for k in c}
        with torch.no_grad():
            for k, p in server.named_parameters():
                p.copy_(mean[k])
    return {k: v.detach() for k, v in server.named_parameters()}, c


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "weight_decay": 0.01}])
@pytest.mark.parametrize("cohorts", [lambda r: range(6), some(3)])
def test_the_profile_is_the_published_loop(options: dict[str, float], cohorts: Any) -> None:
    problem = plain(perceptron())
    made = train(problem, Published(problem.task, LR, 6, optimizer=sgd(**options)), 4, cohorts)
    model, control = published_loop(problem, perceptron(), cohorts, 4, **options)
    assert distance(made.server["params"], model) < 1e-5
    assert distance(made.server["control"], control) < 1e-5


def test_without_momentum_and_with_clients_of_one_size_it_is_option_two() -> None:
    problem = plain(perceptron(), sizes=[4] * 6)
    right, published = (train(problem, a(problem.task, LR, 6), 4, some(3)) for a in (Scaffold, Published))
    same(right, published, 1e-5)
    assert distance(right.rows(), published.rows()) < 1e-5


def test_with_momentum_its_controls_are_several_times_too_large() -> None:
    """In the first round c_i is (x - y)/(K lr): the ratio of both is what the change is worth per step."""
    problem = plain(perceptron(), sizes=[24] * 6)
    right, published = (
        tree.norm(train(problem, a(problem.task, LR, 6, optimizer=sgd(momentum=0.9)), 1).server["control"])
        for a in (Scaffold, Published)
    )
    steps, rho = 8, 0.9
    worth = (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)
    assert float(published / right) == pytest.approx(worth / steps, rel=1e-4)
    assert worth / steps > 3


def test_statistics_are_averaged_by_examples_too() -> None:
    """NIID-Bench averages the whole state: BatchNorm's running mean after a round is the weighted one."""
    problem = network()
    made = train(problem, Published(problem.task, LR, 6), 1)
    same(made, train(problem, FedAvg(problem.task, LR), 1))


@pytest.mark.slow
def test_with_momentum_the_kit_passes_the_right_one_and_refuses_the_published() -> None:
    claims: dict[str, Any] = {"exact": True, "control": "control", "optimizer": sgd(momentum=0.9)}
    assert "reaches the true optimum" in check_algorithm(Scaffold, **claims)
    with pytest.raises(ConformanceError, match="reaches the true optimum"):
        check_algorithm(Published, **claims)


@pytest.mark.slow
def test_the_profile_keeps_the_contract_of_an_algorithm() -> None:
    passed = check_algorithm(Published, alone=True, control="control")
    assert "same on every engine and in every chunk" in passed
    assert "hooks are pure and keep the structure of every state" in passed


def test_the_profile_has_no_first_option() -> None:
    with pytest.raises(ConfigError, match="option II"):
        Published(network().task, LR, 6, option="I")


def test_seeds_and_rates_of_the_profile_run_as_one_stack(tmp_path: Path) -> None:
    given = [
        Experiment.parse(
            {
                "rounds": 3,
                "seed": seed,
                "data": "digits",
                "partition": {"name": "dirichlet", "clients": 4, "alpha": 0.5},
                "task": {"model": {"name": "mlp", "widths": [8]}},
                "algorithm": {
                    "name": "scaffold",
                    "lr": lr,
                    "profile": "niid-bench",
                    "optimizer": {"name": "sgd", "momentum": 0.9},
                },
                "engine": "vector",
                "evaluate": {"every": 3, "clients": 0},
            }
        )
        for seed, lr in ((0, 0.01), (1, 0.02))
    ]
    stacked = run_together(given, [tmp_path / str(e.seed) for e in given])
    for e, run in zip(given, stacked, strict=True):
        assert distance(run.params, atoll.run(e, tmp_path / "alone" / str(e.seed)).params) < 1e-4
