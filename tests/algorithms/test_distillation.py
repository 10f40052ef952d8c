"""FedDF and FedMD: what they become without their distillation, and what plain PyTorch makes of the same."""

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from atoll import rng, tree
from atoll.algorithms import FedAvg, FedDF, FedMD, LocalOnly
from atoll.algorithms.distilling import turns
from atoll.algorithms.optimizers import sgd
from atoll.core import Chain, PublicExamples
from atoll.data import Partition
from atoll.errors import ConfigError
from atoll.rounds import Central, SentByGroup
from atoll.tasks import Classification, Supervised
from atoll.tasks.models import OneOf
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
            digest(model, turn=turn)
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

    second = [trained_alone(m.state_dict(), made, i, partial(digest, consensus=consensus)) for i, m in enumerate(first)]
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


KINDS: list[dict[str, Any]] = [{"name": "mlp", "widths": [6]}, {"name": "mlp", "widths": [4, 5]}]


def several() -> OneOf:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return OneOf((5,), 3, of=KINDS)


def test_networks_of_different_kinds_digest_as_plain_pytorch_does() -> None:
    given = problem()
    task = Supervised(several(), Classification(3), {**tree.rows(given.columns, slice(0, 4)), "mask": torch.ones(4)})
    made = replace(given, task=task, model=task.init(rng.key(0)))
    optimizer = sgd(momentum=0.5, weight_decay=0.01)
    options: dict[str, Any] = {"digest_lr": 0.2, "batch": 4, "match": "scores", "optimizer": optimizer, "kinds": 2}
    algorithm = FedMD(task, LR, public(), **options)
    round = SentByGroup.around(Central(), algorithm, made.model, Chain(), 3, seed=0)
    assert isinstance(round, SentByGroup)
    run = federation(made, algorithm, stack, round=round)
    group = round.group.tolist()
    assert set(group) == {0, 1}
    assert run.models()["params"]["kind"].argmax(1).tolist() == group  # before their first round, too
    models = [copy.deepcopy(several().networks[g]) for g in group]
    consensus: Tensor | None = None
    for _ in range(2):
        run.run(run.everyone())
        for i, model in enumerate(models):
            descent = torch.optim.SGD(model.parameters(), LR, 0.5, weight_decay=0.01)
            for turn, rows in enumerate(made.partition.of(i).split(made.batch)):
                if consensus is not None:
                    digest(model, consensus, turn)
                descent.zero_grad()
                F.cross_entropy(model(made.columns["x"][rows]), made.columns["y"][rows]).backward()
                descent.step()
        consensus = torch.stack([m(PUBLIC) for m in models]).mean(0).detach()
    for i, (g, model) in enumerate(zip(group, models, strict=True)):
        found = tree.rows(run.models()["params"], i)
        own = {k.removeprefix(f"networks.{g}."): x for k, x in found.items() if k.startswith(f"networks.{g}.")}
        assert distance(own, {k: p.detach() for k, p in model.named_parameters()}) < 1e-5
        assert found["kind"].tolist() == [float(g == k) for k in range(2)]
    assert consensus is not None
    assert torch.allclose(run.server["consensus"], consensus, atol=1e-5)
    assert set(run.program.like) == {"scores"}  # no weights travel


def digest(model: nn.Module, consensus: Tensor, turn: int) -> None:
    rows = (turn * 4 + torch.arange(4)) % 7
    loss = 0.5 * ((model(PUBLIC[rows]) - consensus[rows]) ** 2).sum(1).mean()
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for p, g in zip(model.parameters(), slopes, strict=True):
            p -= 0.2 * g


def test_kinds_that_the_model_has_not_are_refused_with_advice() -> None:
    made, key = problem(), rng.key(0)
    with pytest.raises(ConfigError, match=r"algorithm.kinds: 2 kinds .* name = 'one_of'"):
        FedMD(made.task, LR, public(), kinds=2).init(made.model, key)
    task = Supervised(several(), Classification(3), {**tree.rows(made.columns, slice(0, 4)), "mask": torch.ones(4)})
    with pytest.raises(ConfigError, match=r"algorithm.kinds: is 1, and task.model has 2 networks. Use kinds = 2"):
        FedMD(task, LR, public()).init(task.init(key), key)
    with pytest.raises(ConfigError, match=r"algorithm.widths: clients differ in kind already"):
        FedMD(task, LR, public(), kinds=2, widths=(1.0, 0.5))
    with pytest.raises(ConfigError, match=r"algorithm.shares: 3 shares of 2 kinds"):
        FedMD(task, LR, public(), kinds=2, shares=(0.2, 0.3, 0.5))


@pytest.mark.parametrize("builder", [FedDF, FedMD])
def test_without_public_data_they_are_refused_with_advice(builder: Any) -> None:
    with pytest.raises(ConfigError, match=r"server.root = 0.05"):
        builder(problem().task, LR, None)
