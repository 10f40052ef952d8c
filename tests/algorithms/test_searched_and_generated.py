"""FedNAS, FedGAN and pseudo-labels: against plain PyTorch, and what they become without what is theirs."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from atoll import rng
from atoll.algorithms import FedAvg, FedGAN, FedNAS, PseudoLabels
from atoll.core import Chain
from atoll.data import Partition
from atoll.engines import Loop
from atoll.errors import ConfigError
from atoll.rounds import Central, SentByGroup
from atoll.tasks import Classification, Supervised
from atoll.tasks.models import CellNet, Supernet, derived_network
from atoll.tasks.models.gan import Gan
from atoll.testing.assertions import distance
from atoll.testing.harness import federation, stack
from atoll.testing.problems import Problem

SIZES, LR = (6, 4, 5), 0.1


def problem(model: nn.Module, shape: tuple[int, ...]) -> Problem:
    total = sum(SIZES)
    x, y = rng.uniform(rng.key("x"), (total, *shape)), rng.bits(rng.key("y"), (total,)) % 3
    task = Supervised(model, Classification(3), {"x": x[:4], "y": y[:4], "mask": torch.ones(4)})
    rows = torch.arange(total).split(list(SIZES))
    return Problem(task, task.init(rng.key(0)), {"x": x, "y": y}, Partition.from_lists(rows), batch=4)


def seeded(build: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model: nn.Module = build()
        return model


def supernet() -> nn.Module:
    return seeded(lambda: Supernet((1, 4, 4), 3, channels=2))


def searched(made: Problem, client: int, arch_lr: float, arch_train: float | None = None) -> nn.Module:
    """First-order DARTS in plain PyTorch, or MiLeNAS's mixed levels."""
    net = supernet()
    for rows in made.partition.of(client).split(made.batch):
        x, y = made.columns["x"][rows], made.columns["y"][rows]
        if len(rows) > 1 or arch_train is not None:
            loss = F.cross_entropy(net(x[1::2]), y[1::2]) if len(rows) > 1 else torch.zeros(())
            loss = loss + (arch_train or 0.0) * F.cross_entropy(net(x[::2]), y[::2])
            (g,) = torch.autograd.grad(loss, [net.alpha])  # type: ignore[list-item]
            with torch.no_grad():
                net.alpha -= arch_lr * g  # type: ignore[operator]
        weights = {k: p for k, p in net.named_parameters() if k != "alpha"}
        slopes = torch.autograd.grad(F.cross_entropy(net(x[::2]), y[::2]), list(weights.values()), allow_unused=True)
        with torch.no_grad():
            for p, g in zip(weights.values(), slopes, strict=True):
                p -= LR * g
    return net


@pytest.mark.parametrize("arch_train", [None, 0.5])
def test_fednas_searches_as_plain_pytorch_does(arch_train: float | None) -> None:
    """As DARTS does, and as its paper does, by the training loss, too."""
    made = problem(supernet(), (1, 4, 4))
    run = federation(made, FedNAS(made.task, LR, arch_lr=100.0, arch_server_lr=0.5, arch_train=arch_train), stack)
    run.run(range(3))
    nets = [dict(searched(made, i, 100.0, arch_train).named_parameters()) for i in range(3)]
    shares = [n / sum(SIZES) for n in SIZES]
    mean = {k: sum(s * net[k].detach() for s, net in zip(shares, nets, strict=True)) for k in nets[0]}
    mean["alpha"] = made.model["params"]["alpha"] + 0.5 * (mean["alpha"] - made.model["params"]["alpha"])
    assert distance(run.server["params"], mean) < 1e-5
    assert float((run.server["params"]["alpha"] - made.model["params"]["alpha"]).abs().max()) > 0.02
    assert set(run.program.like) == {"delta", "architecture", "buffers"}


def test_with_no_rate_for_it_the_architecture_stays() -> None:
    made = problem(supernet(), (1, 4, 4))
    run = federation(made, FedNAS(made.task, LR, arch_lr=0.0), stack)
    run.run(range(3))
    assert torch.equal(run.server["params"]["alpha"], made.model["params"]["alpha"])
    assert not torch.equal(run.server["params"]["head.weight"], made.model["params"]["head.weight"])


def test_the_derived_network_is_the_supernet_that_is_sure_of_its_operations() -> None:
    net = supernet()
    with torch.no_grad():
        net.alpha[:] = torch.tensor([[0.0, 0, 0, 50, 0], [0, 50, 0, 0, 0], [0, 0, 0, 0, 50.0]])  # type: ignore[index,operator]
    operations, weights = derived_network(net.state_dict())
    assert operations == ["conv3", "skip", "conv5"]
    cell = CellNet((1, 4, 4), 3, operations, channels=2)
    cell.load_state_dict(weights)
    x = rng.normal(rng.key("z"), (5, 1, 4, 4))
    assert torch.allclose(cell(x), net(x), atol=1e-5)


def test_fednas_needs_an_architecture() -> None:
    made = problem(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), (1, 4, 4))
    with pytest.raises(ConfigError, match=r"task.model = 'supernet'"):
        FedNAS(made.task, LR).init(made.model, rng.key(0))


def gan() -> nn.Module:
    return seeded(lambda: Gan((5,), 3, width=6, generator_width=4, noise=2))


def test_fedgan_without_a_generator_or_fakes_in_its_loss_leaves_the_generator_alone() -> None:
    made = problem(gan(), (5,))
    run = federation(made, FedGAN(made.task, LR, generator_lr=0.0), stack)
    run.run(range(3))
    start = made.model["params"]
    assert all(torch.equal(run.server["params"][k], start[k]) == k.startswith("generator.") for k in start)


def test_fedgan_plays_as_plain_pytorch_does() -> None:
    made = problem(gan(), (5,))
    run = federation(made, FedGAN(made.task, LR, generator_lr=0.3), Loop)
    keys: list[Tensor] = []
    step = FedGAN.step

    def watched(self: FedGAN, carry: Any, sent: Any, own: Any, batch: Any) -> Any:
        keys.append(batch["key"])
        return step(self, carry, sent, own, batch)

    FedGAN.step = watched  # type: ignore[method-assign]
    try:
        run.run([1])
    finally:
        FedGAN.step = step  # type: ignore[method-assign]
    net: Any = gan()
    rows = made.partition.of(1)
    x, y = made.columns["x"][rows], made.columns["y"][rows]
    place = rng.fold(keys[0], 7)
    z = torch.stack([rng.normal(rng.fold(place, row), (2,)) for row in range(4)])

    def fakes() -> Tensor:
        return torch.sigmoid(net.generator["out"](torch.relu(net.generator["hidden"](z))))

    judge = [net.hidden.weight, net.hidden.bias, net.head.weight, net.head.bias]
    loss = F.cross_entropy(net(x), y) + F.softplus(-net(x).logsumexp(1)).mean()
    loss = loss + F.softplus(net(fakes().detach()).logsumexp(1)).mean()
    slopes = torch.autograd.grad(loss, judge)
    with torch.no_grad():
        for p, g in zip(judge, slopes, strict=True):
            p -= LR * g
    real, fake = (torch.relu(net.hidden(v)).mean(0) for v in (x, fakes()))
    made_by = list(net.generator.parameters())
    slopes = torch.autograd.grad(((real - fake) ** 2).sum(), made_by)
    with torch.no_grad():
        for p, g in zip(made_by, slopes, strict=True):
            p -= 0.3 * g
    assert distance(run.server["params"], dict(net.named_parameters())) < 1e-5


def test_fedgan_is_the_same_on_loop_and_stack_and_needs_a_generator() -> None:
    made = problem(gan(), (5,))
    ends = [federation(made, FedGAN(made.task, LR), engine) for engine in (Loop, stack)]
    for run in ends:
        run.run(range(3))
        run.run(range(2))
    assert distance(ends[0].server, ends[1].server) < 1e-5
    plain = problem(nn.Linear(5, 3), (5,))
    with pytest.raises(ConfigError, match=r"task.model = 'gan'"):
        FedGAN(plain.task, LR).init(plain.model, rng.key(0))


def perceptron() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)))


def semi(made: Problem, **options: Any) -> tuple[PseudoLabels, Any]:
    algorithm = PseudoLabels(made.task, LR, **options)
    return algorithm, SentByGroup.around(Central(), algorithm, made.model, Chain(), made.partition.size, seed=3)


def test_pseudo_labels_of_clients_that_all_have_labels_are_fedavg() -> None:
    made = problem(perceptron(), (5,))
    algorithm, round = semi(made, labelled=1.0)
    assert isinstance(round, Central)
    runs = [federation(made, a, stack) for a in (algorithm, FedAvg(made.task, LR))]
    for run in runs:
        run.run(range(3))
    assert distance(runs[0].server, runs[1].server) == 0.0


def test_clients_without_labels_never_look_at_them_and_learn_what_the_server_says() -> None:
    made = problem(perceptron(), (5,))
    ends = []
    for shift in (0, 1):  # wrong labels for all who have none
        algorithm, round = semi(made, labelled=0.34, threshold=0.35, noise=0.0)
        without = (round.group == 1).nonzero()[:, 0].tolist()
        y = made.columns["y"].clone()
        for client in without:
            y[made.partition.of(client)] = (y[made.partition.of(client)] + shift) % 3
        changed = Problem(made.task, made.model, {**made.columns, "y": y}, made.partition, made.batch)
        run = federation(changed, algorithm, stack, round=round)
        run.run(range(3))
        run.run(range(3))
        ends.append(run.server)
    assert len(without) == 2
    assert distance(ends[0], ends[1]) == 0.0


def test_a_client_that_is_sure_of_nothing_does_not_count() -> None:
    made = problem(perceptron(), (5,))
    algorithm, round = semi(made, labelled=0.34, threshold=1.0)
    labelled = (round.group == 0).nonzero()[:, 0].tolist()
    ends = []
    for ids in (range(3), labelled):
        run = federation(made, algorithm, stack, round=round)
        run.run(ids)
        ends.append(run.server)
    assert distance(ends[0], ends[1]) < 1e-6
