"""Every draw has a key of its own: noise of two clients, steps or tensors, and coins beside noise, share nothing.

A correlation of n draws has deviation 1 / sqrt(n); bounds are five of them: false alarms in about a million keys.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from atoll import rng, tree
from atoll.algorithms.fedavg import FedAvg
from atoll.core import Chain, Cohort, Engine, Update
from atoll.data import Population
from atoll.engines import DeviceData, Loop, RowStore, Vector
from atoll.tasks import Regression, Supervised
from atoll.tasks.dp_sgd import PrivateTask
from atoll.testing.harness import Federation, federation
from atoll.testing.problems import network
from atoll.transforms import privunit
from atoll.transforms.clip import ClipL2
from atoll.transforms.integers import FixedPoint
from atoll.transforms.local_noise import LocalGaussian, Privunit
from atoll.transforms.weights import EqualWeights
from atoll.tree import Tree
from tests.transforms.test_local_noise import SIZE, bound, draws_of

KEY = rng.key("keys")
ENGINES = [Loop, Vector]


def flat(value: Tree) -> Tensor:
    return torch.cat([x.flatten() for x in tree.leaves(value)]).double()


def alike(a: Tensor, b: Tensor) -> bool:
    return abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) > 5 / len(a) ** 0.5


@dataclass(frozen=True, eq=False)
class Blank(Population):
    """Clients that take their steps on batches which drew nobody."""

    def cohort(self, ids: Tensor, key: Tensor, table: int = 0) -> Cohort:
        cohort = super().cohort(ids, key, table)
        return replace(cohort, count=torch.zeros_like(cohort.count))


def made(engine: Any, algorithm: FedAvg, chain: Chain | None = None, blank: bool = False) -> Federation:
    def keyed(data: DeviceData, store: RowStore) -> Engine:
        population = Blank(data.population.partition, data.population.batch, shuffle=False)
        return engine(replace(data, keyed=True, population=population if blank else data.population), store)

    return federation(network(), algorithm, keyed, chain)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_clients_have_local_noise_of_their_own(engine: Any) -> None:
    chain = Chain((EqualWeights(), ClipL2(1e-3), LocalGaussian(1e-3, 1e-5)))  # nothing but noise
    server = made(engine, FedAvg(network().task, 0.1), chain)
    one, other, both = (
        flat(server.engine.run(server.request(ids)).partial.value["delta"]) for ids in ([0], [1], [0, 1])
    )
    assert float(one.std()) > 1.0
    assert not alike(one, other)
    assert torch.allclose(both, one + other, atol=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_step_of_a_client_has_noise_of_its_own(engine: Any) -> None:
    """Noise of S steps has variance S, and S^2 where it is the same in all of them."""
    lr = 0.1
    task = PrivateTask(network().task, 1.0, 2.0, 3.0, keyed=network().keyed)
    server = made(engine, FedAvg(task, lr), blank=True)
    steps = int(server.engine.data.population.steps(torch.tensor([3])))
    total = server.engine.run(server.request([3])).partial
    noise = flat(total.value["delta"]) / float(total.weight) / (lr * 2.0 / 3.0)
    spread = 5 * (2 / len(noise)) ** 0.5
    assert float(noise.square().mean()) == pytest.approx(steps, rel=spread)
    assert spread < steps - 1


def test_noise_on_gradients_is_not_what_the_key_of_the_step_itself_gives() -> None:
    """Whoever decodes a batch draws from that key."""
    x = torch.zeros(1, 3000)
    example = {"x": x, "y": torch.zeros(1, 1), "mask": torch.ones(1)}
    task = Supervised(nn.Linear(3000, 1, bias=False), Regression(), example)
    batch = {**example, "mask": torch.zeros(1), "key": KEY}
    noise = flat(PrivateTask(task, 1.0, 1.0).gradient(task.init(KEY)["params"], {}, batch)[0])
    assert not any(alike(noise, draw(KEY, (3000,)).double()) for draw in (rng.normal_dp, rng.normal, rng.uniform))


def test_the_coins_of_privunit_have_nothing_to_do_with_its_noise() -> None:
    """For an update of 0 a coin decides the direction; the first radius of the noise must not tell which."""
    n = 4_000
    x = draws_of(bound(ClipL2(1.0), Privunit(20.0)), {"x": torch.zeros(SIZE)}, n)
    side, pair = np.sign(x.sum(1)), [0, SIZE // 2]
    across = x - x.mean(1, keepdims=True)
    radius = (across[:, pair] ** 2).sum(1)
    assert abs(np.corrcoef(side, radius)[0, 1]) < 5 / n**0.5


def test_the_coins_of_privunit_are_no_block_of_a_long_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[Tensor] = []
    uniform = rng.uniform
    monkeypatch.setattr(privunit.rng, "uniform", lambda k, *a: (keys.append(k), uniform(k, *a))[1])
    privunit.privunit({"x": torch.zeros(4)}, 1.0, privunit.cap(1.0), KEY)
    blocks = rng.bits(KEY, (1 << 21, 2))
    assert len(keys) == 1
    assert not bool((blocks == keys[0]).all(1).any())


def test_two_tensors_are_rounded_each_by_draws_of_its_own() -> None:
    value = {"a": torch.full((4_000,), 0.5), "b": torch.full((4_000,), 0.5)}
    sent = FixedPoint(1.0).client(Update(value, torch.ones(())), {}, {}, KEY)[0].value
    assert not alike(sent["a"], sent["b"])
