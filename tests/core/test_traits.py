"""What an algorithm declares of itself holds in every run, whatever is wrapped around it."""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll.algorithms import ALGORITHMS, wrappers
from atoll.algorithms.fedavg import FedAvg
from atoll.algorithms.wrappers import LocalStatistics, Snapshot
from atoll.core import Algorithm, Model, Traits
from atoll.errors import ConfigError, ConformanceError
from atoll.experiment.experiment import TaskTable
from atoll.testing import CLAIMS, check_algorithm, check_wrapper
from atoll.testing.algorithm import AlgorithmCase
from atoll.testing.problems import network
from atoll.tree import Tree

SIZES = [5, 23, 4, 11, 9]
CLIENTS = [list(range(sum(SIZES[:i]), sum(SIZES[: i + 1]))) for i in range(len(SIZES))]
POLICIES = get_args(TaskTable.model_fields["batch_norm"].annotation)
OPTIONS = {name: {k: v for k, v in claims.items() if k in ("mu", "alpha")} for name, claims in CLAIMS.items()}
BUILT = {name: AlgorithmCase(builder, OPTIONS[name]).on(network()) for name, builder in ALGORITHMS.items()}
POOLED = [name for name, algorithm in BUILT.items() if algorithm.traits().pooled]
WRAPPERS = [
    x for x in vars(wrappers).values() if isinstance(x, type) and is_dataclass(x) and fields(x)[0].name == "inner"
]


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


def test_the_wrappers_to_test_are_found() -> None:
    assert set(WRAPPERS) == {LocalStatistics, Snapshot}


@pytest.mark.parametrize("wrap", WRAPPERS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_wrapper_keeps_every_trait_of_what_it_wraps(name: str, wrap: Any) -> None:
    check_wrapper(wrap, BUILT[name])
    check_wrapper(lambda inner: wrap(LocalStatistics(inner)), BUILT[name])


@dataclass(frozen=True)
class Forgetful(Snapshot):
    def traits(self) -> Traits:
        return Traits(personal=True)


@dataclass(frozen=True)
class Inventive(Snapshot):
    def traits(self) -> Traits:
        return Traits(counts_clients=True)


@pytest.mark.parametrize(
    ("wrap", "name", "words"),
    [
        (Forgetful, "centralised", "keeps the traits .* no pooled"),
        (Forgetful, "scaffold", "keeps the traits .* no counts_clients"),
        (Forgetful, "fedper", "keeps the traits .* no partial"),
        (Inventive, "fedavg", "adds no client count .* counts_clients"),
    ],
)
def test_a_wrapper_that_lies_about_what_it_wraps_is_refused(wrap: Any, name: str, words: str) -> None:
    with pytest.raises(ConformanceError, match=words):
        check_wrapper(wrap, BUILT[name])


@dataclass(frozen=True)
class SaysNothing(FedAvg):
    traits: None = None  # type: ignore[assignment]


@dataclass(frozen=True)
class SaysItInADict(FedAvg):
    def traits(self) -> Any:
        return {"personal": True}


@dataclass(frozen=True)
class PooledAndPersonal(FedAvg):
    def traits(self) -> Traits:
        return Traits(pooled=True, personal=True)


@dataclass(frozen=True)
class WithoutAKey(FedAvg):
    def init(self, model: Model) -> Tree:  # type: ignore[override]
        return model


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (SaysNothing, "has every hook and traits: found no traits"),
        (SaysItInADict, "traits gives Traits: found dict"),
        (PooledAndPersonal, "what is pooled is not personal"),
        (WithoutAKey, r"init takes what it is given: found 1 arguments, expected init\(model, key\)"),
    ],
)
def test_an_algorithm_that_does_not_say_what_it_is_is_refused(wrong: type[Algorithm], words: str) -> None:
    with pytest.raises(ConformanceError, match=words):
        check_algorithm(wrong)


def test_a_run_refuses_what_is_no_algorithm_and_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"algorithm.name: .*SaysNothing.* has no 'traits'.*atoll check"):
        run(f"{__name__}:SaysNothing", "average", CLIENTS)
