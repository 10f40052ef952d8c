"""A small federation whose updates leak, and what an attacker sees of it."""

from typing import Any

from atoll.attacks.leakage.few_examples import with_images
from atoll.attacks.leakage.observe import Observed, observe
from atoll.experiment import Experiment, Setup, set_up

BASE: dict[str, Any] = {
    "rounds": 3,
    "data": "digits",
    "partition": {"name": "iid", "clients": 60},
    "task": {"model": {"name": "mlp", "widths": [32]}},
    "local": {"batch": 0},
    "algorithm": {"name": "fedsgd", "lr": 0.1},
    "engine": "vector",
}


def federation(images: int | None = None, **changes: Any) -> Setup:
    experiment = Experiment.parse({**BASE, **changes})
    if images is not None:
        assert experiment.partition is not None
        experiment = with_images(experiment, experiment.partition, images)
    return set_up(experiment, "cpu")


def leaked(groups: int = 4, images: int | None = 1, clients: int | None = None, **changes: Any) -> Observed:
    return observe(federation(images, **changes), groups, clients)
