"""Metrics from columns: central and per-client, against hand-made numbers and scikit-learn."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as sklearn_metrics
from sklearn.metrics import mean_absolute_error, mean_squared_error, roc_auc_score, top_k_accuracy_score

from atoll.errors import ConfigError
from atoll.records import clean
from atoll.tasks import METRICS, Classification, NextToken, Regression, batch_loss, metrics_for, spread
from atoll.tasks.metrics import Auroc, Columns, Ratio, gini

ONE = np.zeros


def columns(**found: list[float]) -> dict[str, np.ndarray]:
    return {k: np.array(v, np.float64) for k, v in found.items()}


def table(objective: Classification | Regression | NextToken, out: torch.Tensor, y: torch.Tensor) -> Columns:
    return {k: v.double().numpy() for k, v in objective.columns(out, y).items()}


def central(kind: str, found: Columns) -> dict[str, float]:
    n = len(found["weight"])
    return {k: float(m.by_group(found, ONE(n, np.int64), 1)[0]) for k, m in metrics_for(kind, found).items()}


def test_the_example_of_the_pfl_research_paper() -> None:
    """User 1 has one datum, predicted right; user 2 has seven, all wrong: central 1/8, per user 1/2."""
    found = columns(correct=[1] + [0] * 7, weight=[1] * 8)
    group = np.array([0] + [1] * 7)
    accuracy = METRICS["accuracy"]
    assert accuracy.by_group(found, np.zeros(8, np.int64), 1).tolist() == [0.125]
    assert spread(accuracy.by_group(found, group, 2), "higher")["mean"] == 0.5


def test_one_client_is_central_and_one_example_each_is_the_plain_mean() -> None:
    draw = np.random.default_rng(0)
    found = {"loss": draw.random(50), "weight": np.ones(50)}
    whole = Ratio("loss").by_group(found, np.zeros(50, np.int64), 1)
    assert whole == pytest.approx(found["loss"].mean())
    assert Ratio("loss").by_group(found, np.arange(50), 50) == pytest.approx(found["loss"])


def test_groups_may_come_in_any_order_and_an_empty_one_has_no_number() -> None:
    draw = np.random.default_rng(1)
    found = {"score": draw.random(60).round(1), "label": (draw.random(60) < 0.4).astype(float)}
    found |= {"correct": found["label"], "weight": np.ones(60)}
    group = draw.integers(0, 5, 60) * 2  # the odd groups are empty
    for name in ("accuracy", "auroc"):
        together = METRICS[name].by_group(found, group, 10)
        for g in range(10):
            mine = {k: v[group == g] for k, v in found.items()}
            alone = METRICS[name].by_group(mine, np.zeros(len(mine["label"]), np.int64), 1)[0]
            assert together[g] == pytest.approx(alone, nan_ok=True)
        assert np.isnan(together[1::2]).all()


@pytest.mark.parametrize("digits", [1, 8])  # one digit: many ties
@pytest.mark.parametrize("seed", range(3))
def test_auroc_is_scikit_learn_s_with_and_without_ties(seed: int, digits: int) -> None:
    draw = np.random.default_rng(seed)
    score, label = draw.standard_normal(200).round(digits), (draw.random(200) < 0.3).astype(float)
    group = draw.integers(0, 4, 200)
    found = Auroc().by_group({"score": score, "label": label}, group, 4)
    assert found == pytest.approx([roc_auc_score(label[group == g], score[group == g]) for g in range(4)])


def test_auroc_of_one_class_is_no_number_and_null_in_json() -> None:
    found = Auroc().by_group(columns(score=[0.1, 0.9, 0.2, 0.8], label=[1, 1, 0, 1]), np.array([0, 0, 1, 1]), 2)
    assert math.isnan(found[0])
    assert found[1] == 1.0
    assert clean({"auroc": found.tolist()}) == {"auroc": [None, 1.0]}
    assert spread(found, "higher")["mean"] == 1.0  # over the clients that have one


def test_classification_columns_make_scikit_learn_s_numbers() -> None:
    torch.manual_seed(0)
    out, y = torch.randn(80, 6), torch.randint(0, 6, (80,))
    found = central("classification", table(Classification(6, top=(2, 3, 9)), out, y))
    assert found["loss"] == pytest.approx(float(F.cross_entropy(out, y)), rel=1e-5)
    for k in (1, 2, 3):
        name = "accuracy" if k == 1 else f"top{k}_accuracy"
        assert found[name] == pytest.approx(top_k_accuracy_score(y, out, k=k, labels=range(6))), k
    assert found["top9_accuracy"] == 1.0  # there are only six
    assert "auroc" not in found


def test_two_classes_have_an_auroc() -> None:
    torch.manual_seed(0)
    out, y = torch.randn(50, 2), torch.randint(0, 2, (50,))
    found = central("classification", table(Classification(2), out, y))
    assert found["auroc"] == pytest.approx(roc_auc_score(y, out.softmax(1)[:, 1]))


def test_regression_columns_make_scikit_learn_s_numbers() -> None:
    torch.manual_seed(0)
    out, y = torch.randn(40, 3), torch.randn(40, 3)
    found = central("regression", table(Regression(), out, y))
    assert found["mse"] == found["loss"] == pytest.approx(mean_squared_error(y, out), rel=1e-6)
    assert found["mae"] == pytest.approx(mean_absolute_error(y, out), rel=1e-6)


def test_perplexity_counts_tokens_not_sequences() -> None:
    torch.manual_seed(0)
    out, y = torch.randn(6, 9, 5), torch.randint(0, 5, (6, 9))
    y[0, 1:] = y[3, 4:] = -100
    found = central("next_token", table(NextToken(5), out, y))
    mean = float(F.cross_entropy(out.reshape(-1, 5), y.reshape(-1), ignore_index=-100))
    assert found["loss"] == pytest.approx(mean, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(mean), rel=1e-5)
    real = y != -100
    assert found["accuracy"] == pytest.approx(float((out.argmax(-1) == y)[real].float().mean()))


def test_sums_merge_first_and_are_divided_last() -> None:
    torch.manual_seed(0)
    out, y = torch.randn(30, 7, 4), torch.randint(0, 4, (30, 7))
    y[:10, 2:] = -100
    whole = table(NextToken(4), out, y)
    parts = [table(NextToken(4), out[s], y[s]) for s in (slice(0, 11), slice(11, 12), slice(12, 30))]
    merged = {k: np.concatenate([p[k] for p in parts]) for k in whole}
    assert central("next_token", merged) == pytest.approx(central("next_token", whole), rel=1e-9)


def test_only_metrics_that_make_sense_are_shown() -> None:
    plain = dict.fromkeys(("weight", "loss", "correct"))
    assert list(metrics_for("classification", plain)) == ["accuracy", "loss"]
    assert list(metrics_for("next_token", plain)) == ["accuracy", "loss", "perplexity"]
    assert "perplexity" not in metrics_for("regression", dict.fromkeys(("weight", "loss", "squared", "absolute")))


def test_the_spread_over_clients_by_hand() -> None:
    values = np.array([0.9, 0.1, 0.5, 0.5, 0.7, 0.3, 0.6, 0.4, 0.8, 0.2, 0.55, np.nan])
    known = values[:-1]
    found = spread(values, "higher")
    assert found["mean"] == pytest.approx(known.mean())
    assert found["std"] == pytest.approx(known.std())
    assert (found["min"], found["max"], found["median"]) == (0.1, 0.9, 0.5)
    assert found["worst_decile"] == pytest.approx(0.15)  # the worst 2 of 11: a tenth, rounded up
    assert spread(values, "lower")["worst_decile"] == pytest.approx(0.85)
    assert spread(np.array([np.nan]), "higher") == {}


def test_gini_is_half_the_mean_difference_over_the_mean() -> None:
    v = np.random.default_rng(0).random(40)
    by_hand = np.abs(v[:, None] - v[None]).mean() / 2 / v.mean()
    assert gini(v) == pytest.approx(by_hand)
    assert gini(np.full(7, 0.3)) == pytest.approx(0)
    assert gini(np.array([0.0] * 9 + [1.0])) == pytest.approx(0.9)
    assert gini(np.zeros(4)) == 0


def test_a_loss_of_one_s_own_is_taken_example_by_example() -> None:
    torch.manual_seed(0)
    out, y = torch.randn(12, 4), torch.randint(0, 4, (12,))
    own = batch_loss(F.cross_entropy, out, y)
    assert own.separable
    assert torch.allclose(own.examples(out, y)[0], Classification(4).losses(out, y)[0], atol=1e-6)
    target = torch.randn(12, 4)
    smooth = batch_loss(torch.nn.SmoothL1Loss(), out, target).examples(out, target)[0]
    assert torch.allclose(smooth.mean(), F.smooth_l1_loss(out, target), atol=1e-6)


def test_a_loss_that_is_not_one_number_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"loss: gives \(3, 4\) for a batch of 3, but must give one number"):
        batch_loss(torch.nn.MSELoss(reduction="none"), torch.randn(3, 4), torch.randn(3, 4))


@pytest.mark.parametrize("classes", [2, 4])
def test_metrics_of_classes_are_scikit_learn_s(classes: int) -> None:
    rng = np.random.default_rng(classes)
    label = rng.integers(0, classes, 60)
    predicted = np.where(rng.random(60) < 0.6, label, rng.integers(0, 2, 60)) % 3  # of four classes one is never said
    found: Columns = {
        "label": label.astype(float),
        "predicted": predicted.astype(float),
        "correct": (label == predicted).astype(float),
        **({"score": predicted - 0.5} if classes == 2 else {}),
    }
    oracles: dict[str, Callable[..., float]] = {
        "f1": sklearn_metrics.f1_score,
        "precision": sklearn_metrics.precision_score,
        "recall": sklearn_metrics.recall_score,
    }
    group = np.arange(60) // 30
    for g in range(2):
        y, said = label[group == g], predicted[group == g]
        average = {"average": "binary" if classes == 2 else "macro", "zero_division": 0}
        for name, oracle in oracles.items():
            assert METRICS[name].by_group(found, group, 2)[g] == pytest.approx(oracle(y, said, **average)), name
        macro = sklearn_metrics.f1_score(y, said, average="macro", zero_division=0)
        assert METRICS["f1_macro"].by_group(found, group, 2)[g] == pytest.approx(macro)
        balanced = sklearn_metrics.balanced_accuracy_score(y, said)
        assert METRICS["balanced_accuracy"].by_group(found, group, 2)[g] == pytest.approx(balanced)


def test_the_calibration_error_is_the_mean_gap_of_its_bins() -> None:
    found: Columns = {"confidence": np.array([0.95, 0.97, 0.61, 0.65]), "correct": np.array([1.0, 0.0, 1.0, 1.0])}
    by_hand = 0.5 * abs(0.96 - 0.5) + 0.5 * abs(0.63 - 1.0)
    assert METRICS["ece"].by_group(found, np.zeros(4, np.int64), 1)[0] == pytest.approx(by_hand)
