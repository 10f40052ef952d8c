import numpy as np
import pytest
import torch

from atoll.attacks.leakage.property_inference import ClassShare, property_attack, ridge_scores, shadow_setup
from atoll.errors import ConfigError
from tests.support.leaking import leaked

SKEWED = {"partition": {"name": "dirichlet", "clients": 40, "alpha": 0.3}}


def test_who_holds_much_of_a_class_is_told_from_the_update() -> None:
    seen = leaked(40, None, **SKEWED)
    found = property_attack(seen, ClassShare(3, 0.2), 60, seed=0)
    assert found["with"] + found["without"] == 40
    assert found["auc"] > 0.8


def test_shadow_clients_have_the_property_by_halves_and_are_made_of_test_data() -> None:
    seen = leaked(6, 20, **SKEWED)
    setup, has = shadow_setup(seen, ClassShare(3, 0.5), 40, seed=0)
    y = setup.dataset.train["y"]
    assert y is seen.setup.dataset.test["y"]  # type: ignore[index]
    shares = torch.stack([(y[setup.training.of(c)] == 3).double().mean() for c in range(40)])
    assert torch.equal(shares >= 0.5, has)
    assert int(has.sum()) == 20


def test_ridge_scores_are_those_of_the_plain_solution() -> None:
    draw = np.random.default_rng(0)
    shadows, updates, has = draw.normal(size=(12, 5)), draw.normal(size=(4, 5)), np.arange(12) % 3 == 0
    centred, target = shadows - shadows.mean(0), 2.0 * has - 1
    ridge = 0.1 * (centred**2).sum(1).mean()
    w = np.linalg.solve(centred.T @ centred + ridge * np.eye(5), centred.T @ (target - target.mean()))
    wanted = (updates - shadows.mean(0)) @ w + target.mean()
    split = [{"a": torch.tensor(x[:, :2]), "b": torch.tensor(x[:, 2:])} for x in (shadows, updates)]
    assert ridge_scores(split[0], torch.tensor(has), split[1]).numpy() == pytest.approx(wanted)


def test_a_property_that_all_or_none_have_is_refused() -> None:
    seen = leaked(4)
    with pytest.raises(ConfigError, match="of 4 victims have it"):
        property_attack(seen, ClassShare(int(seen.setup.dataset.outputs), 0.5), 10, 0)
    with pytest.raises(ConfigError, match="asks single clients"):
        property_attack(leaked(2, clients=2), ClassShare(1, 0.5), 10, 0)
