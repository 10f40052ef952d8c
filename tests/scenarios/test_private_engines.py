"""Mechanisms in a run: the same model on every engine, in any chunks; cohorts that do not serve are refused.

Ranks, resumed runs and stacks of runs: test_ranks.py, test_resume.py, test_together.py.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll import rng, tree
from atoll.errors import AtollError
from tests.support.marks import slow_but

E = "equal_weights"
CLIP = {"name": "clip_l2", "max_norm": 0.5}
FIXED = {"name": "fixed_point", "step": 1e-3}
SUM = {"name": "secure_sum", "bits": 20}
CYCLE = {"name": "cyclic", "size": 4, "min_separation": 3}
CHAINS: dict[str, tuple[list[Any], Any]] = {
    "adaptive clipping": ([E, {"name": "adaptive_clip"}, {"name": "gaussian_noise", "noise_multiplier": 0.1}], 5),
    "layers": ([E, {"name": "clip_per_layer", "max_norm": 0.5},
                {"name": "gaussian_noise", "noise_multiplier": 0.1, "noise_cohort": 50}], 5),
    "groups": ([E, {"name": "clip_layers", "max_norms": {"weight": 0.5, "rest": 0.1}}], 5),
    "laplace": ([E, {"name": "clip_l1", "max_norm": 0.5}, {"name": "laplace_noise", "noise_multiplier": 0.1}], 5),
    "discrete": ([E, CLIP, FIXED, {"name": "discrete_gaussian", "noise_multiplier": 0.1}, SUM], 5),
    "skellam": ([E, "adaptive_clip", FIXED, {"name": "skellam", "noise_multiplier": 0.1}, SUM], 5),
    "local": ([E, CLIP, {"name": "local_gaussian", "epsilon": 50.0, "delta": 1e-5}], 5),
    "local laplace": ([E, {"name": "clip_l1", "max_norm": 0.5}, {"name": "local_laplace", "epsilon": 50.0}], 5),
    "privunit": ([E, CLIP, {"name": "privunit", "epsilon": 20.0}], 5),
    "approximation": ([E, CLIP, {"name": "approximate_local", "mechanism": "privunit", "epsilon": 20.0}], 5),
    "weak": ([{"name": "weak_dp", "max_norm": 0.5, "std": 0.01}], 5),
    "nbafl": ([E, {"name": "nbafl", "max_norm": 0.5, "epsilon": 50.0, "delta": 1e-3, "examples": 20, "rounds": 20,
                   "clients": 12}], 5),
    "banded": ([E, CLIP, {"name": "banded_noise", "noise_multiplier": 0.1, "bands": 3}], CYCLE),
    "tree": ([E, "adaptive_clip", {"name": "tree_noise", "noise_multiplier": 0.1}], CYCLE),
    "scheduled": ([E, {"name": "clip_l2", "max_norm": {"name": "cosine", "start": 1.0, "end": 0.1, "over": 4}}, FIXED,
                   {"name": "skellam", "noise_multiplier": 0.1}, SUM], 5),
}  # fmt: skip

X = rng.normal(rng.key("x"), (240, 6))
Y = (X[:, 0] + X[:, 1] > 0).long()
ROWS = [list(range(20 * c, 20 * c + 20)) for c in range(12)]


def simulate(name: str, out: Path, engine: Any, **changed: Any) -> atoll.Run:
    transforms, cohort = CHAINS[name]
    options: dict[str, Any] = {
        "clients": ROWS,
        "algorithm": {"name": "fedavg", "lr": 0.5},
        "rounds": 4,
        "cohort": cohort,
        "batch": 10,
        "evaluate": {"clients": 0},
    }
    torch.manual_seed(0)
    model = torch.nn.Linear(6, 2)
    return atoll.simulate(model, (X, Y), engine=engine, out=out, transforms=transforms, **{**options, **changed})


def gap(a: atoll.Run, b: atoll.Run) -> float:
    return float(tree.norm(tree.sub(a.params, b.params)) / tree.norm(b.params))


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(CHAINS, "adaptive clipping", "banded", "discrete", "layers", "local"))
def test_a_mechanism_gives_the_same_model_on_every_engine_and_in_any_chunks(name: str, tmp_path: Path) -> None:
    truth = simulate(name, tmp_path / "loop", "loop")
    engines = [{"name": "vector"}, {"name": "vector", "chunk": 2}, {"name": "vector", "chunk": 1, "capture": False}]
    for i, engine in enumerate(engines):
        # A number next to a step may be rounded to another one; PrivUnit has a coin for the whole update.
        assert gap(simulate(name, tmp_path / str(i), engine), truth) < (1e-3 if FIXED in CHAINS[name][0] else 1e-5)


@pytest.mark.parametrize(
    ("cohort", "chain", "advice"),
    [
        (5, "banded", "with min_separation = 3"),
        ({"name": "cyclic", "size": 4, "min_separation": 2}, "banded", "with min_separation = 3"),
        ({"name": "cyclic_poisson", "size": 4.0, "min_separation": 2}, "banded", "with min_separation = 3"),
        ({"name": "cyclic_poisson", "size": 4.0, "min_separation": 3}, "discrete", "use cohort.name = 'fixed'"),
        ({"name": "poisson", "size": 5.0}, "discrete", "use cohort.name = 'fixed'"),
    ],
)
def test_the_cohort_must_be_what_the_mechanism_needs(cohort: Any, chain: str, advice: str, tmp_path: Path) -> None:
    with pytest.raises(AtollError) as refused:
        simulate(chain, tmp_path / "run", "loop", cohort=cohort)
    assert advice in str(refused.value)
