"""HeteroFL against networks that are really narrower, trained one by one in plain PyTorch."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from atoll import rng
from atoll.algorithms import FedAvg, HeteroFL
from atoll.core import Chain, Round
from atoll.data import Partition
from atoll.engines import Loop, Threads
from atoll.errors import ConfigError
from atoll.rounds import Central, Gossip, SentByGroup
from atoll.tasks import Classification, Supervised
from atoll.testing.assertions import distance
from atoll.testing.harness import EngineFactory, Federation, federation, stack
from atoll.testing.problems import Problem, network
from atoll.transforms import TRANSFORMS
from atoll.transforms.clip import ClipL2
from atoll.transforms.weights import EqualWeights
from atoll.tree import Tree

SIZES, LR = (4, 6, 3, 5), 0.1
WIDTHS, SHARES = (1.0, 0.5, 0.3), (0.5, 0.25, 0.25)


class Net(nn.Module):
    """A convolution, BatchNorm, pooling, and two dense layers, at a share of their width."""

    def __init__(self, share: float = 1.0, scaler: bool = False) -> None:
        super().__init__()
        a, b = math.ceil(6 * share), math.ceil(5 * share)
        self.conv, self.norm = nn.Conv2d(1, a, 3), nn.BatchNorm2d(a)
        self.dense, self.head = nn.Linear(a * 4, b), nn.Linear(b, 3)
        self.share = share if scaler else 1.0

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.tanh(self.norm(self.conv(x) / self.share)), 2)
        x = torch.sigmoid(self.dense(x.flatten(1)) / self.share)  # of 0 it is not 0: cut units must not be read
        out: Tensor = self.head(x)
        return out


def problem() -> Problem:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = Net()
    total = sum(SIZES)
    x, y = rng.normal(rng.key("x"), (total, 1, 6, 6)), rng.bits(rng.key("y"), (total,)) % 3
    task = Supervised(model, Classification(3), {"x": x[:4], "y": y[:4], "mask": torch.ones(4)})
    rows = torch.arange(total).split(list(SIZES))
    return Problem(task, task.init(rng.key(0)), {"x": x, "y": y}, Partition.from_lists(rows), batch=2)


def heterofl(made: Problem, scaler: bool = True, widths: tuple[float, ...] = WIDTHS, **more: Any) -> HeteroFL:
    shares = SHARES if widths == WIDTHS else ()
    return HeteroFL(made.task, LR, widths, shares, scaler, **more)


def grouped(made: Problem, algorithm: HeteroFL, inner: Round | None = None, chain: Chain | None = None) -> SentByGroup:
    size = made.partition.size
    round = SentByGroup.around(inner or Central(), algorithm, made.model, chain or Chain(), size, seed=1)
    assert isinstance(round, SentByGroup)
    return round


def trained(rounds: int, scaler: bool = True, engine: EngineFactory = stack) -> tuple[Federation, SentByGroup]:
    made = problem()
    algorithm = heterofl(made, scaler)
    round = grouped(made, algorithm)
    run = federation(made, algorithm, engine, round=round)
    for _ in range(rounds):
        run.run(run.everyone())
    return run, round


def cut(state: dict[str, Tensor], like: dict[str, Tensor]) -> dict[str, Tensor]:
    """The upper left of every tensor."""
    return {k: state[k][tuple(slice(n) for n in x.shape)].clone() for k, x in like.items() if k in state}


def oracle(made: Problem, widths: list[float], rounds: int, scaler: bool) -> dict[str, Tensor]:
    """Narrow networks one after the other, and a mean for every number over those who have it."""
    server: dict[str, Tensor] = {**made.model["params"], **made.model["buffers"]}
    for _ in range(rounds):
        sums = {k: torch.zeros_like(x) for k, x in server.items()}
        counts = {k: torch.zeros_like(x) for k, x in server.items()}
        for client, width in enumerate(widths):
            net = Net(width, scaler)
            net.load_state_dict(cut(server, net.state_dict()), strict=False)
            net.train()
            optimizer = torch.optim.SGD(net.parameters(), LR)
            for rows in made.partition.of(client).split(made.batch):
                optimizer.zero_grad()
                F.cross_entropy(net(made.columns["x"][rows]), made.columns["y"][rows]).backward()
                optimizer.step()
            for k, x in net.state_dict().items():
                if k in server:
                    corner = tuple(slice(n) for n in x.shape)
                    sums[k][corner] += SIZES[client] * (x - server[k][corner])
                    counts[k][corner] += SIZES[client]
        server = {k: x + sums[k] / counts[k].clamp(min=1e-9) for k, x in server.items()}
    return server


@pytest.mark.parametrize("scaler", [True, False])
def test_masked_training_is_that_of_networks_that_are_really_narrower(scaler: bool) -> None:
    run, round = trained(3, scaler)
    widths = [WIDTHS[g] for g in round.group.tolist()]
    assert sorted(widths) == [0.3, 0.5, 1.0, 1.0]
    truth = oracle(run.problem, widths, 3, scaler)
    assert distance({**run.server["params"], **run.server["buffers"]}, truth) < 1e-5


def test_one_width_of_one_is_fedavg_bit_for_bit() -> None:
    made = network()
    ends = [federation(made, a, stack) for a in (HeteroFL(made.task, LR), FedAvg(made.task, LR))]
    for run in ends:
        run.run(run.everyone())
    assert distance(ends[0].server, ends[1].server) == 0.0


def test_several_classes_of_full_width_are_fedavg() -> None:
    made = problem()
    algorithm = heterofl(made, widths=(1.0, 1.0))
    a = federation(made, algorithm, stack, round=grouped(made, algorithm))
    b = federation(made, FedAvg(made.task, LR), stack)
    for run in (a, b):
        run.run(run.everyone())
    assert distance(a.server, b.server) < 1e-6


def test_a_unit_that_nobody_holds_stays_as_it_was() -> None:
    made = problem()
    algorithm = heterofl(made)
    round = grouped(made, algorithm)
    run = federation(made, algorithm, stack, round=round)
    narrow = [i for i in range(4) if WIDTHS[int(round.group[i])] < 1]
    run.run(narrow)
    assert torch.equal(run.server["params"]["conv.weight"][3:], made.model["params"]["conv.weight"][3:])
    assert not torch.equal(run.server["params"]["conv.weight"][:2], made.model["params"]["conv.weight"][:2])


def test_heterofl_is_the_same_on_every_engine() -> None:
    ends: list[Tree] = [trained(2, engine=engine)[0].server for engine in (Loop, stack, Threads)]
    assert max(distance(end, ends[0]) for end in ends[1:]) < 1e-5


def test_only_what_a_client_holds_is_counted_in_bytes() -> None:
    run, round = trained(0)
    wide = [i for i in range(4) if int(round.group[i]) == 0]
    narrow = [i for i in range(4) if int(round.group[i]) == 2]
    bytes_of = [run.run(ids).bytes() for ids in ([wide[0]], narrow)]
    net, slim = (sum(p.numel() for p in Net(r).parameters()) for r in (1.0, 0.3))
    assert 4 * net < bytes_of[0]["up"] < 4 * net + 700
    assert 4 * slim < bytes_of[1]["up"] < 4 * slim + 700
    assert bytes_of[0]["up"] - bytes_of[1]["up"] == 4 * (net - slim) + 4 * 2 * (6 - 2)  # and BatchNorm's statistics
    assert bytes_of[0]["down"] - bytes_of[1]["down"] == bytes_of[0]["up"] - bytes_of[1]["up"]


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"widths": ()}, r"such as \[1.0, 0.5, 0.25\]"),
        ({"widths": (0.5, 0.25)}, "never trained"),
        ({"widths": (1.0, 0.5), "shares": (0.5,)}, "one for each"),
        ({"widths": (1.0, 0.5), "shares": (0.5, 0.4)}, r"Use \[0.556, 0.444\]"),
    ],
)
def test_wrong_classes_are_refused_with_advice(options: dict[str, Any], advice: str) -> None:
    with pytest.raises(ConfigError, match=advice):
        HeteroFL(problem().task, LR, **options)


def test_a_round_without_a_server_is_refused() -> None:
    made = problem()
    with pytest.raises(ConfigError, match="central"):
        grouped(made, heterofl(made), Gossip())


@pytest.mark.parametrize("name", ["top_k", "qsgd", "gaussian_noise", "local_gaussian", "half"])
def test_transforms_of_whole_updates_are_refused_and_clipping_is_not(name: str) -> None:
    options: dict[str, Any] = {
        "top_k": {"share": 0.1},
        "gaussian_noise": {"noise_multiplier": 1.0},
        "local_gaussian": {"epsilon": 1.0, "delta": 1e-5},
    }
    made, other = problem(), TRANSFORMS[name](**options.get(name, {}))
    algorithm = heterofl(made)
    with pytest.raises(ConfigError, match=rf"transform.2: {name}"):
        grouped(made, algorithm, chain=Chain((EqualWeights(), ClipL2(1.0), other)))
    assert grouped(made, algorithm, chain=Chain((EqualWeights(), ClipL2(1.0)))).traits().sends_rows
