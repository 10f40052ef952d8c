"""Two classes and a model with one output: binary cross-entropy of a logit, and everything else as of two classes."""

import copy
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import f1_score, roc_auc_score
from torch import Tensor, nn
from typer.testing import CliRunner

import atoll
from atoll.cli.main import app
from atoll.errors import ConfigError
from atoll.runs import Run

CLIENTS = torch.arange(41).split([7, 16, 1, 12, 5])
METRICS = ["balanced_accuracy", "f1", "precision", "recall", "ece", "brier"]
PLAIN: dict[str, Callable[[Tensor, Tensor], Tensor] | None] = {
    "none": None,
    "BCEWithLogitsLoss": nn.BCEWithLogitsLoss(),
    "function": F.binary_cross_entropy_with_logits,
    "own": lambda out, y: F.softplus(out[:, 0] * (1 - 2 * y)).mean(),
}

torch.manual_seed(0)
Y = (torch.rand(71) < 0.4).long()
X = torch.randn(71, 4) + 2 * Y[:, None]


class Zero(nn.Module):
    """The same net with a second output, which is 0 and comes first."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        z = self.net(x)
        return torch.cat([torch.zeros_like(z), z], 1)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def simulate(model: nn.Module, **options: Any) -> Run:
    algorithm = {"name": "fedavg", "lr": 0.3}
    given = {"rounds": 3, "batch": 5, "shuffle": False, "algorithm": algorithm, "metrics": METRICS, **options}
    return atoll.simulate(model, (X[:41], Y[:41]), (X[41:], Y[41:]), clients=CLIENTS, **given)


@pytest.mark.parametrize("engine", ["loop", "vector"])
@pytest.mark.parametrize("loss", PLAIN)
def test_one_logit_is_two_of_which_the_first_is_zero(loss: str, engine: str) -> None:
    one, two = simulate(net(), loss=PLAIN[loss], engine=engine), simulate(Zero(net()), engine=engine)
    for name, values in one.params.items():
        assert torch.allclose(values, two.params[f"net.{name}"], atol=1e-6)
    for name in ("accuracy", "auroc", "loss", "train_loss", *METRICS):
        assert one.final[name] == pytest.approx(two.final[name], abs=1e-5)
    assert one.final["clients"]["accuracy"] == pytest.approx(two.final["clients"]["accuracy"])


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_it_is_trained_as_torch_would_with_weights_too(engine: str) -> None:
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0]))
    done, by_hand = simulate(net(), loss=loss, engine=engine), fedavg(loss)
    for name, values in by_hand.state_dict().items():
        assert torch.allclose(done.params[name], values, atol=1e-6)
    out = by_hand(X[41:])[:, 0].detach()
    assert done.final["accuracy"] == pytest.approx(float(((out > 0).long() == Y[41:]).double().mean()))
    assert done.final["auroc"] == pytest.approx(roc_auc_score(Y[41:], out), abs=1e-6)
    assert done.final["f1"] == pytest.approx(f1_score(Y[41:], out > 0))
    assert done.final["loss"] == pytest.approx(float(loss(out, Y[41:].float())), abs=1e-5)


def fedavg(loss: nn.Module) -> nn.Module:
    model = net()
    for _ in range(3):
        total = {k: torch.zeros_like(v) for k, v in model.state_dict().items()}
        for rows in CLIENTS:
            mine = copy.deepcopy(model)
            optimizer = torch.optim.SGD(mine.parameters(), 0.3)
            for batch in rows.split(5):
                optimizer.zero_grad()
                loss(mine(X[batch])[:, 0], Y[batch].float()).backward()
                optimizer.step()
            for k, v in mine.state_dict().items():
                total[k] += v * len(rows) / 41
        model.load_state_dict(total)
    return model


def test_a_model_may_give_its_logits_without_an_axis() -> None:
    flat = nn.Sequential(net(), nn.Flatten(0))
    done = simulate(flat, loss=nn.BCEWithLogitsLoss(), engine="loop")
    assert done.final == simulate(net(), loss=nn.BCEWithLogitsLoss(), engine="loop").final


def test_predictions_are_classes_and_both_probabilities() -> None:
    done = simulate(net())
    with torch.no_grad():
        p = done.model()(X[41:])[:, 0].double().sigmoid().numpy()
    assert np.allclose(done.predict(X[41:], probabilities=True), np.stack([1 - p, p], 1))
    assert done.predict(X[41:]).tolist() == (p > 0.5).astype(int).tolist()
    assert 0 < done.predict(X[41:]).sum() < 30


def test_a_metric_of_ones_own_gets_the_logit() -> None:
    done = simulate(net(), metrics={"auc": lambda scores, y: roc_auc_score(y, scores) if 0 < y.sum() < len(y) else 0.5})
    assert done.final["auc"] == pytest.approx(done.final["auroc"], abs=1e-6)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.BCELoss(), partial(F.cross_entropy, reduction="sum")])
def test_a_loss_that_takes_something_else_is_refused(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(ConfigError, match=r"one output for two classes.*nn\.BCEWithLogitsLoss\(\)"):
        simulate(net(), loss=loss)


def test_three_classes_need_three_outputs() -> None:
    with pytest.raises(ConfigError, match="3 classes need"):
        atoll.simulate(net(), (X[:41], torch.arange(41) % 3), clients=CLIENTS, algorithm={"name": "fedavg", "lr": 0.1})


def test_numbers_0_and_1_with_binary_cross_entropy_are_labels() -> None:
    rows = (X[:41], Y[:41].float()), (X[41:], Y[41:].float())
    given = {"rounds": 3, "batch": 5, "shuffle": False, "algorithm": {"name": "fedavg", "lr": 0.3}, "engine": "loop"}
    numbers = atoll.simulate(net(), *rows, clients=CLIENTS, loss=nn.BCEWithLogitsLoss(), **given)
    classes = simulate(net(), loss=nn.BCEWithLogitsLoss(), engine="loop")
    for name in ("accuracy", "auroc", "f1", "loss"):
        assert numbers.final[name] == pytest.approx(classes.final[name])


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    code = "from torch import nn\n\ndef build(inputs, outputs):\n    return nn.Linear(inputs[0], 1)\n"
    (tmp_path / "one_logit_net.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "one_logit_net", raising=False)
    rows = [f"{x[0]:.3f},{x[1]:.3f},{'ill' if y else 'healthy'}" for x, y in zip(X.tolist(), Y.tolist(), strict=True)]
    (tmp_path / "a.csv").write_text("\n".join(["a,b,state", *rows]))
    return {
        "rounds": 2,
        "data": {"name": "csv", "path": str(tmp_path / "a.csv"), "label": "state"},
        "partition": {"name": "iid", "clients": 3},
        "task": {"model": "one_logit_net:build", "loss": {"name": "binary_cross_entropy", "pos_weight": "balanced"}},
        "algorithm": {"name": "fedavg", "lr": 0.3},
    }


def test_a_file_may_weigh_the_second_class_and_its_model_predicts_names(
    experiment: dict[str, Any], tmp_path: Path
) -> None:
    run = atoll.run(experiment, tmp_path / "run")
    assert json.loads((run.folder / "run.json").read_text("utf-8"))["status"] == "finished"
    lines = CliRunner().invoke(app, ["predict", str(run.folder), experiment["data"]["path"]]).stdout.splitlines()
    assert lines[0] == "prediction,p(healthy),p(ill)"
    for line in lines[1:]:
        said, healthy, ill = line.split(",")
        assert float(healthy) + float(ill) == pytest.approx(1, abs=1e-5)
        assert said == ("ill" if float(ill) > 0.5 else "healthy")


def test_a_file_cannot_name_a_loss_of_two_outputs(experiment: dict[str, Any], tmp_path: Path) -> None:
    experiment["task"]["loss"] = "focal"
    with pytest.raises(ConfigError, match=r"'focal' is not for two classes and a model with one output.*binary_cross"):
        atoll.run(experiment, tmp_path / "run")
    experiment["task"] = {"model": "linear", "loss": "binary_cross_entropy"}
    with pytest.raises(
        ConfigError, match=r"'binary_cross_entropy' is not for classification by a model with 2 outputs"
    ):
        atoll.run(experiment, tmp_path / "run")
