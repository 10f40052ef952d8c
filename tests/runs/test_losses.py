"""A loss of one's own is what torch would make of it: on the real examples of a batch, all of them together."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import atoll
from atoll.errors import ConfigError

WEIGHT = torch.tensor([1.0, 1000.0, 0.3])
CLIENTS = torch.arange(41).split([7, 16, 1, 12, 5])  # by fives: every client has a partial last batch, or only that
Loss = Callable[[Tensor, Tensor], Tensor]

torch.manual_seed(0)
Y = torch.randint(0, 3, (71,))
X = torch.randn(71, 4) + Y[:, None]
NET = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def simulate(**options: Any) -> atoll.Run:
    given = {"rounds": 2, "batch": 5, "shuffle": False, "algorithm": {"name": "fedavg", "lr": 0.1}, **options}
    return atoll.simulate(NET, (X[:41], Y[:41]), (X[41:], Y[41:]), clients=CLIENTS, **given)


def fedavg(loss: Loss) -> nn.Module:
    """FedAvg by hand: a loop over clients and batches, plain SGD, the mean of the models weighted by examples."""
    model = copy.deepcopy(NET)
    for _ in range(2):
        total = {k: torch.zeros_like(v) for k, v in model.state_dict().items()}
        for rows in CLIENTS:
            mine = copy.deepcopy(model)
            opt = torch.optim.SGD(mine.parameters(), 0.1)
            for batch in rows.split(5):
                opt.zero_grad()
                value = loss(mine(X[batch]), Y[batch])
                if bool(value.isfinite()):  # torch gives NaN where all labels are ignored
                    value.backward()
                    opt.step()
            for k, v in mine.state_dict().items():
                total[k] += v * len(rows) / 41
        model.load_state_dict(total)
    return model


def dice(out: Tensor, y: Tensor) -> Tensor:
    """One minus the overlap over the whole batch: no mean over examples."""
    p, t = out.softmax(1), F.one_hot(y, 3).float()
    return 1 - (2 * (p * t).sum(0) / (p.sum(0) + t.sum(0))).mean()


def focal(out: Tensor, y: Tensor) -> Tensor:
    nll = F.cross_entropy(out, y, reduction="none")
    return ((1 - (-nll).exp()) ** 2 * nll).mean()


EXACT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "weight": nn.CrossEntropyLoss(weight=WEIGHT),
    "weight and smoothing": nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1),
    "ignored class": nn.CrossEntropyLoss(ignore_index=2, label_smoothing=0.1),
    "weighted sum": nn.CrossEntropyLoss(weight=WEIGHT / 1000, reduction="sum"),
    "a sum of one's own": lambda out, y: 0.1 * focal(out, y) * len(y),
    "partial": partial(F.cross_entropy, weight=WEIGHT),
    "mean of examples": focal,
}


def agrees(loss: Loss, engine: str) -> dict[str, Any]:
    done = simulate(loss=loss, engine=engine)
    by_hand = fedavg(loss)
    for k, v in by_hand.state_dict().items():
        assert torch.allclose(done.params[k], v, atol=1e-6, rtol=1e-5), k
    with torch.no_grad():
        value = float(loss(by_hand(X[41:]), Y[41:]))
    per_example = pytest.approx(value / 30, rel=1e-4)  # what is reported of a sum
    assert done.final["loss"] in (pytest.approx(value, rel=1e-4), per_example)
    return dict(done.info["engine"])


@pytest.mark.parametrize("engine", ["loop", "vector", "threads"])
@pytest.mark.parametrize("name", EXACT)
def test_a_loss_is_torch_s_on_every_engine(name: str, engine: str) -> None:
    assert agrees(EXACT[name], engine)["name"] == engine


@pytest.mark.parametrize("loss", [dice, lambda out, y: F.cross_entropy(out, y, weight=WEIGHT)])
def test_a_loss_of_the_whole_batch_runs_on_the_loop_and_says_why(loss: Loss) -> None:
    engine = agrees(loss, "vector")
    assert engine["name"] == "loop"
    assert "the loss of a batch is not the mean of its examples' losses" in str(engine)


def test_a_loss_that_vmap_cannot_take_runs_on_the_loop_and_says_so() -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y) * (2.0 if float(out.detach().sum()) > -1e9 else 1.0)

    assert "the loss cannot be taken example by example" in str(agrees(loss, "auto"))


def test_class_weights_of_the_whole_batch_are_refused_with_local_privacy() -> None:
    private = {"privacy": {"max_norm": 1.0, "noise_multiplier": 1.0}}
    with pytest.raises(ConfigError, match="examples have no gradients of their own to clip"):
        simulate(loss=nn.CrossEntropyLoss(weight=WEIGHT), local=private)
    apart = simulate(loss=lambda out, y: (WEIGHT[y] * F.cross_entropy(out, y, reduction="none")).mean(), local=private)
    assert apart.status == "finished"


def test_a_loss_with_parameters_of_its_own_is_refused() -> None:
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, out: Tensor, y: Tensor) -> Tensor:
            return self.scale * F.cross_entropy(out, y)

    with pytest.raises(ConfigError, match="loss: has parameters of its own, which nobody would learn"):
        simulate(loss=Learned())


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_numbers_have_torch_s_losses_too(engine: str) -> None:
    numbers = {"clients": CLIENTS, "rounds": 1, "batch": 5, "shuffle": False, "engine": engine}
    positive = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([5.0, 0.2, 1.0]))
    y = F.one_hot(Y, 3).float()
    algorithm = {"name": "fedavg", "lr": 0.1}
    done = atoll.simulate(NET, (X[:41], y[:41]), (X[41:], y[41:]), algorithm=algorithm, loss=positive, **numbers)
    model = copy.deepcopy(NET)
    model.load_state_dict(done.params)
    assert done.final["loss"] == pytest.approx(positive(model(X[41:]), y[41:]).item(), rel=1e-5)
    assert done.info["engine"]["name"] == engine


def test_a_file_can_name_the_loss() -> None:
    balanced = 41 / (3 * torch.bincount(Y[:41]))
    for entry, loss in {
        "weights": ({"name": "cross_entropy", "weight": WEIGHT.tolist()}, EXACT["weight"]),
        "balanced": ({"name": "cross_entropy", "weight": "balanced"}, nn.CrossEntropyLoss(weight=balanced)),
        "focal": ("focal", focal),
    }.values():
        done = simulate(loss=entry, engine="loop")
        for k, v in fedavg(loss).state_dict().items():
            assert torch.allclose(done.params[k], v, atol=1e-6, rtol=1e-5), entry
    with pytest.raises(ConfigError, match=r"task\.loss\.weight: has 2 numbers for 3 outputs. Give one for each"):
        simulate(loss={"name": "cross_entropy", "weight": [1, 2]})
