"""FedDF and FedMD: what they become without their distillation, and what plain PyTorch makes of the same."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from atoll import rng, tree
from atoll.algorithms import FedAvg, FedDF, FedMD, LocalOnly
from atoll.algorithms.distilling import turns
from atoll.core import Chain, PublicExamples
from atoll.data import Partition
from atoll.errors import ConfigError
from atoll.rounds import Central, SentByGroup
from atoll.tasks import Classification, Supervised
from atoll.testing.assertions import distance
from atoll.testing.harness import federation, stack
from atoll.testing.problems import Problem

SIZES, LR = (4, 6, 3), 0.1


def net() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def problem() -> Problem:
    total = sum(SIZES)
    x, y = rng.normal(rng.key("x"), (total, 5)), rng.bits(rng.key("y"), (total,)) % 3
    task = Supervised(net(), Classification(3), {"x": x[:4], "y": y[:4], "mask": torch.ones(4)})
    rows = torch.arange(total).split(list(SIZES))
    return Problem(task, task.init(rng.key(0)), {"x": x, "y": y}, Partition.from_lists(rows), batch=2)


PUBLIC = rng.normal(rng.key("public"), (7, 5))


def public() -> PublicExamples:
    return PublicExamples({"x": PUBLIC})


def trained_alone(start: dict[str, Tensor], made: Problem, client: int, digest: Any = None) -> nn.Sequential:
    model = net()
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), LR)
    for turn, rows in enumerate(made.partition.of(client).split(made.batch)):
        if digest is not None:
            digest(model, turn)
        optimizer.zero_grad()
        F.cross_entropy(model(made.columns["x"][rows]), made.columns["y"][rows]).backward()
        optimizer.step()
    return model


def test_feddf_without_steps_is_fedavg_bit_for_bit() -> None:
    made = problem()
    runs = [federation(made, a, stack) for a in (FedDF(made.task, LR, public(), steps=0), FedAvg(made.task, LR))]
    for run in runs:
        run.run(run.everyone())
        run.run([0, 2])
    assert distance(runs[0].server, runs[1].server) == 0.0


def test_feddf_distils_as_plain_pytorch_does() -> None:
    made, temperature = problem(), 2.0
    algorithm = FedDF(made.task, LR, public(), steps=5, distil_lr=0.3, batch=3, temperature=temperature)
    run = federation(made, algorithm, stack)
    run.run(run.everyone())
    weights = torch.tensor(SIZES) / sum(SIZES)
    models = [trained_alone(net().state_dict(), made, i) for i in range(3)]
    taught = sum(w * m(PUBLIC) for w, m in zip(weights, models, strict=True)).detach()
    student = copy.deepcopy(models[0])
    states = [m.state_dict() for m in models]
    student.load_state_dict({k: sum(w * s[k] for w, s in zip(weights, states, strict=True)) for k in states[0]})
    optimizer = torch.optim.SGD(student.parameters(), 0.3)
    key = rng.fold_name(rng.fold_name(rng.key("round", 0), "apply"), "distil")
    for rows in turns(7, 3, 5, key):
        optimizer.zero_grad()
        p, q = ((z / temperature).log_softmax(1) for z in (taught[rows], student(PUBLIC[rows])))
        (temperature**2 * (p.exp() * (p - q)).sum(1).mean()).backward()
        optimizer.step()
    assert distance(run.server["params"], student.state_dict()) < 1e-5
    assert distance(run.server["params"], dict(models[0].state_dict())) > 1e-2


def test_every_public_example_has_its_turn_in_each_pass() -> None:
    rows = turns(7, 3, 7, rng.key(1))
    assert [len(r) for r in rows] == [3] * 7
    assert sorted(torch.cat(rows).tolist()) == sorted([*range(7)] * 3)
    assert turns(7, 100, 2, rng.key(1))[0].shape == (7,)


def test_fedmd_without_digesting_is_training_alone() -> None:
    made = problem()
    a = federation(made, FedMD(made.task, LR, public(), digest_lr=0.0), stack)
    b = federation(made, LocalOnly(made.task, LR), stack)
    for run in (a, b):
        run.run(run.everyone())
        run.run([1, 2])
    assert distance(a.rows()["algorithm"]["params"], b.rows()["algorithm"]["params"]) < 1e-6


def test_fedmd_digests_and_revisits_as_plain_pytorch_does() -> None:
    made = problem()
    run = federation(made, FedMD(made.task, LR, public(), digest_lr=0.2, batch=4, match="scores"), stack)
    for _ in range(2):
        run.run(run.everyone())
    first = [trained_alone(net().state_dict(), made, i) for i in range(3)]
    consensus = torch.stack([m(PUBLIC) for m in first]).mean(0).detach()

    def digest(model: nn.Sequential, turn: int) -> None:
        rows = (turn * 4 + torch.arange(4)) % 7
        loss = 0.5 * ((model(PUBLIC[rows]) - consensus[rows]) ** 2).sum(1).mean()
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), slopes, strict=True):
                p -= 0.2 * g

    second = [trained_alone(m.state_dict(), made, i, digest) for i, m in enumerate(first)]
    own = run.rows()["algorithm"]["params"]
    for i, model in enumerate(second):
        assert distance(tree.rows(own, i), dict(model.state_dict())) < 1e-5
    mean = torch.stack([m(PUBLIC) for m in second]).mean(0)
    assert torch.allclose(run.server["consensus"], mean, atol=1e-5)


def test_narrow_models_of_fedmd_never_grow_and_no_weights_travel() -> None:
    made = problem()
    algorithm = FedMD(made.task, LR, public(), widths=(1.0, 0.5))
    round = SentByGroup.around(Central(), algorithm, made.model, Chain(), 3, seed=0)
    assert isinstance(round, SentByGroup)
    run = federation(made, algorithm, stack, round=round)
    for _ in range(3):
        run.run(run.everyone())
    narrow = (round.group == 1).nonzero()[:, 0]
    weights = run.rows()["algorithm"]["params"]["0.weight"]
    assert len(narrow)
    assert float(weights[narrow, 3:].abs().max()) == 0.0
    assert float(weights[narrow, :3].abs().min()) > 0.0
    assert set(run.program.like) == {"scores"}


@pytest.mark.parametrize("builder", [FedDF, FedMD])
def test_without_public_data_they_are_refused_with_advice(builder: Any) -> None:
    with pytest.raises(ConfigError, match=r"server.root = 0.05"):
        builder(problem().task, LR, None)
