"""What an algorithm declares of itself holds in every run, whatever is wrapped around it."""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll.algorithms import ALGORITHMS
from atoll.experiment.experiment import TaskTable
from atoll.testing import CLAIMS
from atoll.testing.algorithm import Case
from atoll.testing.problems import network

SIZES = [5, 23, 4, 11, 9]
CLIENTS = [list(range(sum(SIZES[:i]), sum(SIZES[: i + 1]))) for i in range(len(SIZES))]
POLICIES = get_args(TaskTable.model_fields["batch_norm"].annotation)
OPTIONS = {name: {k: v for k, v in claims.items() if k in ("mu", "alpha")} for name, claims in CLAIMS.items()}
TRAITS = {name: Case(builder, OPTIONS[name]).on(network()).traits() for name, builder in ALGORITHMS.items()}
POOLED = [name for name, traits in TRAITS.items() if traits.pooled]


def blobs(n: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    return torch.randn(n, 4, generator=g) + 3.0 * y[:, None].float(), y


def normed() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


def run(algorithm: str, policy: str, clients: list[list[int]]) -> atoll.Run:
    return atoll.simulate(
        normed(),
        data=blobs(sum(SIZES), 0),
        test=blobs(60, 1),
        clients=clients,
        algorithm={"name": algorithm, "lr": 0.2},
        task={"batch_norm": policy},
        rounds=3,
        batch=4,
        shuffle=False,
        engine="loop",
    )


def central(done: atoll.Run) -> dict[str, Any]:
    return {k: done.final[k] for k in ("loss", "accuracy", "train_loss")}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("algorithm", POOLED)
def test_pooled_data_is_one_client_under_every_batch_norm_policy(algorithm: str, policy: str) -> None:
    pooled, alone = (run(algorithm, policy, clients) for clients in (CLIENTS, [list(range(sum(SIZES)))]))
    assert [line["cohort"]["size"] for line in pooled.history] == [1, 1, 1]
    assert central(pooled) == central(alone)
    if policy == "local":  # with one client there is nothing to average: the two policies are one
        assert central(pooled) == central(run(algorithm, "average", CLIENTS))


def test_there_is_a_pooled_algorithm_to_test() -> None:
    assert POOLED == ["centralised"]
