from typing import Any

import numpy as np
import pytest
import torch

from atoll.attacks.leakage.first_layer import _inputs, fc_attack, first_dense
from atoll.attacks.leakage.one_attack import AttackOptions, attack
from atoll.attacks.leakage.pixels import Pixels01
from atoll.errors import ConfigError
from atoll.experiment import Experiment
from tests.support.leaking import BASE, federation, leaked

UNIT = Pixels01(0.0, 1.0)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": {"name": "fedavg", "lr": 0.1}, "local": {"batch": 0, "epochs": 20}},
        {"task": {"model": "linear"}},
    ],
    ids=["fedsgd", "fedavg, 20 epochs", "one layer"],
)
def test_a_single_example_is_recovered_to_the_float(changes: dict[str, Any]) -> None:
    seen = leaked(8, **changes)
    found = fc_attack(seen, Pixels01.of(seen.setup))
    torch.testing.assert_close(found, seen.victims.x[:, 0], atol=2e-5, rtol=0)


def test_of_a_batch_what_alone_activates_a_neuron_is_recovered() -> None:
    """Nine neurons see one input each, three times three; three see mixtures, with larger biases."""
    draw = np.random.default_rng(0)
    x, a = draw.uniform(0, 1, (3, 20)), np.zeros((12, 3))
    for r in range(9):
        a[r, r % 3] = draw.uniform(0.1, 1)
    a[9:] = draw.uniform(1, 2, (3, 3))
    weight, bias = torch.tensor(a @ x)[None], torch.tensor(a.sum(1))[None]
    found = _inputs((weight, bias), 3, UNIT)[0].numpy()
    for row in x:
        assert np.abs(found - row).max(1).min() < 1e-9


def test_a_neuron_that_never_fired_says_nothing() -> None:
    weight, bias = torch.zeros(1, 4, 5), torch.zeros(1, 4)
    weight[0, 2], bias[0, 2] = torch.full((5,), 0.5), 2.0
    assert torch.equal(_inputs((weight, bias), 1, UNIT)[0, 0], torch.full((5,), 0.25))


def test_the_first_dense_layer_must_take_the_examples_themselves() -> None:
    assert first_dense(federation(1)) == "hidden.0"
    with pytest.raises(ConfigError, match=r"first dense layer of cnn does not\. Use --method inverting"):
        first_dense(federation(1, task={"model": "cnn"}))


@pytest.mark.parametrize("epsilon", [0.1])
def test_under_much_noise_nobody_is_identified(epsilon: float) -> None:
    noise = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}]
    noisy = [*noise, {"name": "local_gaussian", "epsilon": epsilon, "delta": 1e-4}]
    options = AttackOptions("fc", victims=60, images=1, among=200)
    open_, private = (
        attack(Experiment.parse({**BASE, "transform": t}), options, "cpu").summary for t in (noise, noisy)
    )
    assert open_["identification"]["rate"] == 1
    assert private["identification"]["chance"] == 1 / 200
    assert private["identification"]["interval"][0] <= 1 / 200
    assert private["identification"]["rate"] < 0.06
