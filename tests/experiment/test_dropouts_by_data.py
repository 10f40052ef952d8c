"""[clock] dropouts by data, from the file to who is in the sum; and what cannot be asked for."""

from typing import Any

import pytest

from atoll.errors import ConfigError
from atoll.experiment import Experiment, set_up
from atoll.experiment.clock_setup import make_clock

RAW: dict[str, Any] = {
    "rounds": 2,
    "data": "digits",
    "partition": {"name": "classes", "clients": 10, "per_client": 1},
    "task": {"model": "linear"},
    "algorithm": {"name": "fedavg", "lr": 0.1},
}


def propensity(**clock: Any) -> list[float]:
    experiment = Experiment.parse({**RAW, "clock": {"seconds_per_step": 0.0, "dropout": 0.1, **clock}})
    setup = set_up(experiment)
    assert experiment.clock is not None
    clocked = make_clock(experiment, experiment.clock, setup.population.size, setup.training, setup.dataset.labels)
    assert clocked.propensity is not None
    return [float(x) for x in clocked.propensity]


def test_clients_of_the_named_labels_are_lost_more() -> None:
    found = propensity(dropout_by_labels=[0, 1])
    assert sorted(found) == pytest.approx([0.0] * 8 + [5.0] * 2)


def test_large_clients_are_lost_in_proportion_to_their_examples() -> None:
    setup = set_up(Experiment.parse(RAW))
    sizes = setup.training.sizes.double()
    assert propensity(dropout_by_size=1.0) == pytest.approx((sizes / sizes.mean()).tolist())


NOISE = ["equal_weights", {"name": "clip_l2", "max_norm": 1.0}, {"name": "gaussian_noise", "noise_multiplier": 1.0}]


@pytest.mark.parametrize(
    ("clock", "more", "said"),
    [
        ({"dropout_by_labels": [11]}, {}, "there is no class 11"),
        ({"dropout_by_labels": [0], "dropout_by_size": 1.0}, {}, "Keep one of them"),
        ({"dropout_by_labels": [0]}, {"transform": NOISE, "privacy": {"delta": 1e-3}}, "which the noise is to protect"),
        ({"dropout_correlation": 1.5}, {}, "dropout_correlation"),
    ],
)
def test_what_cannot_be_is_refused_with_advice(clock: dict[str, Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        set_up(Experiment.parse({**RAW, **more, "clock": {"seconds_per_step": 0.0, "dropout": 0.1, **clock}}))


def test_sizes_are_said_to_be_public_where_they_decide_who_is_lost() -> None:
    private = {**RAW, "transform": NOISE, "privacy": {"delta": 1e-3}}
    clock = {"seconds_per_step": 0.0, "dropout": 0.1, "dropout_by_size": 1.0}
    experiment = Experiment.parse({**private, "clock": clock})
    assert experiment.clock is not None
    assert experiment.clock.selects_by_time
    assert set_up(experiment).privacy is not None
