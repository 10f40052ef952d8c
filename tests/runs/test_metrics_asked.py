"""Metrics that are asked for, from Python and by name; and the one that leads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import atoll
from atoll.analysis.compare import opened
from atoll.analysis.compare.load_side import metric_of
from atoll.errors import ConfigError, RecordError
from atoll.records import read_runs
from atoll.report import group, known_metric, primary, summary, write
from atoll.tasks import METRICS, better

torch.manual_seed(0)
X = torch.randn(120, 4)
Y = (X[:, 0] + 0.5 * torch.randn(120) > 1.2).long()


def simulate(x: Tensor = X, y: Tensor = Y, outputs: int = 2, **options: Any) -> atoll.Run:
    given: dict[str, Any] = {"rounds": 1, "clients": {"name": "iid", "clients": 3}, "engine": "vector", **options}
    algorithm = given.pop("algorithm", {"name": "fedavg", "lr": 0.3})
    return atoll.simulate(
        lambda: nn.Linear(4, outputs), (x[:60], y[:60]), (x[60:], y[60:]), algorithm=algorithm, **given
    )


def predicted(run: atoll.Run, x: Tensor) -> Tensor:
    return x @ run.params["weight"].T + run.params["bias"]


def cost(scores: NDArray[np.float64], targets: NDArray[np.float64]) -> float:
    return float(((scores.argmax(1) != targets) * (1 + 9 * targets)).mean())


def test_metrics_by_name_are_those_of_the_formulas() -> None:
    y = (X[:, 0] > 0.2).long()
    names = ["f1", "recall", "precision", "balanced_accuracy", "ece", "brier", "f1_macro"]
    run = simulate(y=y, metrics=names, rounds=5)
    out, y = predicted(run, X[60:]), y[60:]
    said, p = out.argmax(1), out.softmax(1)[:, 1]
    hits = float(((said == 1) & (y == 1)).sum())
    recall, precision = hits / float((y == 1).sum()), hits / float((said == 1).sum())
    specificity = float((said[y == 0] == 0).float().mean())
    assert run.final["recall"] == pytest.approx(recall)
    assert run.final["precision"] == pytest.approx(precision)
    assert run.final["f1"] == pytest.approx(2 * recall * precision / (recall + precision))
    assert run.final["balanced_accuracy"] == pytest.approx((recall + specificity) / 2)
    assert run.final["brier"] == pytest.approx(float(((p - y) ** 2).mean()), rel=1e-5)
    assert 0 < run.final["ece"] < 0.5
    assert set(run.history[-1]["clients"]) >= {"f1", "ece", "accuracy"}


def test_a_function_of_scores_and_targets_is_measured_centrally_and_by_client() -> None:
    run = simulate(metrics={"cost": (cost, "lower")}, metric="cost")
    assert run.final["cost"] == pytest.approx(cost(predicted(run, X[60:]).numpy(), Y[60:].numpy()))
    assert run.history[-1]["clients"]["cost"]["mean"] > 0
    assert (run.info["metric"], run.info["better"]["cost"]) == ("cost", "lower")
    assert simulate(metrics=[cost]).final["cost"] == run.final["cost"]


def test_a_metric_by_import_path_is_that_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    name = f"{__name__.rpartition('.')[2]}:cost"
    assert simulate(evaluate={"metrics": [name]}).final["cost"] == simulate(metrics=[cost]).final["cost"]


def test_where_nearly_all_are_of_one_class_auroc_leads_and_a_note_says_why() -> None:
    run = simulate()
    assert run.info["metric"] == "auroc"
    assert any("AUROC leads" in note for note in run.info["notes"])
    assert simulate(metric="accuracy").info["metric"] == "accuracy"
    even = simulate(y=(X[:, 0] > 0).long())
    assert even.info["metric"] == "accuracy"


def test_several_labels_have_metrics_of_labels() -> None:
    y = (X[:, :3] > 0).float()
    run = simulate(y=y, outputs=3, loss=nn.BCEWithLogitsLoss(), rounds=3)
    right = (predicted(run, X[60:]) > 0) == (y[60:] > 0)
    assert run.final["accuracy"] == pytest.approx(float(right.all(1).float().mean()))
    scores = predicted(run, X[60:])
    pairs = [(s[t == 1][:, None] > s[t == 0]).float().mean() for s, t in zip(scores.T, y[60:].T, strict=True)]
    assert run.final["auroc"] == pytest.approx(float(sum(pairs)) / 3)
    assert 0 < run.final["f1"] <= 1
    assert "mse" not in run.final


def test_numbers_have_r2() -> None:
    y = X[:, :1] * 2 + 1
    run = simulate(y=y, outputs=1, metrics=["r2"], rounds=3)
    out = predicted(run, X[60:])
    rest, whole = ((y[60:] - out) ** 2).sum(), ((y[60:] - y[60:].mean()) ** 2).sum()
    assert run.final["r2"] == pytest.approx(float(1 - rest / whole), rel=1e-4)


def test_a_metric_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"metric: 'aurok' is not known\. Did you mean 'auroc'"):
        simulate(metric="aurok")
    with pytest.raises(ConfigError, match=r"metric: 'f1' is not for this data\. There are: loss, mse, mae\."):
        simulate(y=X[:, :1], outputs=1, metric="f1")


def test_the_metric_that_leads_is_in_table_page_and_comparison(tmp_path: Path) -> None:
    for method in ("fedavg", "fedprox"):
        algorithm = {"name": method, "lr": 0.3, **({"mu": 0.1} if method == "fedprox" else {})}
        simulate(algorithm=algorithm, metrics={"cost": (cost, "lower")}, metric="cost", out=tmp_path / method)
    folders = [tmp_path / "fedavg", tmp_path / "fedprox"]
    assert primary(read_runs(folders)).better == "lower is better"
    assert str(summary(folders).title).startswith("cost, lower is better")
    assert "Lowest cost at the last round" in write(folders, tmp_path / "page.html").read_text()
    assert "Highest AUROC" in write(folders, tmp_path / "page.html", metric="auroc").read_text()
    sides = opened(str(folders[0])), opened(str(folders[1]))
    assert metric_of(sides, None).key == "cost"
    assert metric_of(sides, "clients.accuracy.mean").percent
    with pytest.raises(RecordError, match="no such metric as 'aurok'; there are accuracy, auroc, cost, loss"):
        metric_of(sides, "aurok")


def test_personal_models_come_first_in_the_table_and_the_headline(tmp_path: Path) -> None:
    simulate(algorithm={"name": "ditto", "lr": 0.3, "mu": 0.1}, out=tmp_path / "ditto")
    simulate(out=tmp_path / "fedavg")
    folders = [tmp_path / "ditto", tmp_path / "fedavg"]
    assert [str(c.header) for c in summary(folders).columns][2] == "own mean"
    assert "Highest mean over clients of their AUROC" in write(folders, tmp_path / "page.html").read_text()
    assert [str(c.header) for c in summary(folders[1:]).columns][2].strip() == "test"


@pytest.mark.parametrize("name", METRICS)
def test_reports_know_the_direction_of_every_metric(name: str) -> None:
    assert known_metric(name).higher_is_better == (better(name) == "higher")


def test_the_metric_that_leads_is_no_setting_of_a_method(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    for seed, metric in enumerate(("auroc", "accuracy")):
        given = {"clients": {"name": "iid", "clients": 3}, "algorithm": {"name": "fedavg", "lr": 0.3}, "rounds": 1}
        atoll.simulate(model, (X, Y), (X, Y), seed=seed, metric=metric, out=tmp_path / metric, **given)
    assert len(group(read_runs([tmp_path / "auroc", tmp_path / "accuracy"]))) == 1


@pytest.mark.parametrize(
    "wrong", [lambda s, y: "x", lambda s, y: s, lambda s, y: 1 / 0], ids=["a text", "an array", "an error"]
)
def test_a_metric_of_ones_own_that_fails_is_named(wrong: Any) -> None:
    x = torch.randn(40, 3)
    with pytest.raises(ConfigError, match=r"metrics: 'mine' failed on .* must give one number"):
        atoll.simulate(
            torch.nn.Linear(3, 2),
            (x, (x[:, 0] > 0).long()),
            (x, (x[:, 0] > 0).long()),
            clients={"name": "iid", "clients": 2},
            algorithm={"name": "fedavg", "lr": 0.1},
            rounds=1,
            metrics={"mine": wrong},
        )


def test_float_labels_of_binary_cross_entropy_are_not_called_a_regression() -> None:
    x = torch.randn(40, 3)
    y = (x[:, :1] > 0).float()
    run = atoll.simulate(
        torch.nn.Linear(3, 1),
        (x, y),
        (x, y),
        loss=torch.nn.BCEWithLogitsLoss(),
        clients={"name": "iid", "clients": 2},
        algorithm={"name": "fedavg", "lr": 0.1},
        rounds=1,
    )
    assert "accuracy" in run.final
    assert not any("regression" in note for note in run.info["notes"])
