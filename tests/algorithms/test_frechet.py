"""The distance of generated from real examples: identities, and NumPy and SciPy as an oracle."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import scipy.linalg
import torch

import atoll
from atoll import rng
from atoll.algorithms.fedgan import FedGAN, generated
from atoll.algorithms.frechet import frechet_distance, random_features
from atoll.core import PublicExamples
from tests.algorithms.test_searched_and_generated import LR, gan, problem

Array = npt.NDArray[np.float64]


def by_scipy(a: Array, b: Array) -> float:
    return by_roots(a, b, lambda product: float(np.trace(np.real(scipy.linalg.sqrtm(product)))))


def by_numpy(a: Array, b: Array) -> float:
    """Where covariances are singular, which scipy warns of: the trace of a root is the sum of its eigenvalues."""
    return by_roots(a, b, lambda product: float(np.sqrt(np.clip(np.linalg.eigvals(product).real, 0, None)).sum()))


def by_roots(a: Array, b: Array, trace_of_root: Callable[[Array], float]) -> float:
    gap = a.mean(0) - b.mean(0)
    first, second = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    return float(gap @ gap + np.trace(first + second)) - 2 * trace_of_root(first @ second)


@pytest.mark.parametrize(("rows", "others", "width"), [(50, 80, 3), (40, 40, 8), (300, 20, 5)])
def test_it_is_what_scipy_says(rows: int, others: int, width: int) -> None:
    a = rng.normal(rng.key("a"), (rows, width)).double() @ rng.normal(rng.key("mix"), (width, width)).double()
    b = 0.5 + 2.0 * rng.normal(rng.key("b"), (others, width)).double()
    assert float(frechet_distance(a, b)) == pytest.approx(by_scipy(a.numpy(), b.numpy()), rel=1e-8)
    assert float(frechet_distance(a, b)) == pytest.approx(float(frechet_distance(b, a)), rel=1e-8)


def test_a_sample_is_nowhere_from_itself_and_a_shift_counts_its_square() -> None:
    a = rng.normal(rng.key("a"), (30, 4)).double()
    assert float(frechet_distance(a, a)) < 1e-9
    assert float(frechet_distance(a, a + 2.0)) == pytest.approx(16.0)
    centred, _ = torch.linalg.qr(a - a.mean(0))  # four directions of variance 1 / 29, none correlated
    assert float(frechet_distance(centred, 3 * centred)) == pytest.approx(4 * 4 / 29)


def test_samples_that_are_all_alike_have_no_covariance_and_still_a_distance() -> None:
    a, b = torch.ones(5, 3).double(), rng.normal(rng.key("b"), (9, 3)).double()
    want = ((1.0 - b.mean(0)) ** 2).sum() + b.var(0).sum()
    assert float(frechet_distance(a, b)) == pytest.approx(float(want), rel=1e-9)


def test_features_are_fixed_and_of_the_input_alone() -> None:
    x = rng.uniform(rng.key("x"), (6, 1, 4, 4))
    first = random_features(x)
    assert first.shape == (6, 16)
    assert torch.equal(first[2:4], random_features(x[2:4]))
    assert bool((first >= 0).all())
    assert bool((first > 0).any(0).sum() > 4)


def test_the_record_has_the_distance_from_what_the_server_holds() -> None:
    made, real = problem(gan(), (5,)), rng.uniform(rng.key("real"), (40, 5))
    algorithm = FedGAN(made.task, LR, public=PublicExamples({"x": real}))
    said = algorithm._frechet(made.model["params"])["frechet"]
    params = made.model["params"]
    fake = generated(params, rng.normal(rng.key("frechet"), (40, 2)), ())
    want = by_numpy(random_features(fake).numpy(), random_features(real).numpy())
    assert float(said) == pytest.approx(want, rel=1e-4)
    assert algorithm.traits().records == ("coverage", "frechet")
    assert FedGAN(made.task, LR).traits().records == ("coverage",)


def test_a_run_with_examples_of_the_servers_own_says_it_in_every_line(tmp_path: Path) -> None:
    file = {
        "rounds": 2,
        "data": "digits",
        "partition": {"name": "iid", "clients": 3},
        "task": {"model": {"name": "gan", "width": 8}},
        "local": {"batch": 32, "max_steps": 4},
        "algorithm": {"name": "fedgan", "lr": 0.1},
        "engine": "vector",
        "evaluate": {"every": 2, "clients": 0},
    }
    with_root = atoll.run({**file, "server": {"root": 0.1}}, tmp_path / "root")
    figures = [line["diagnostics"]["frechet"] for line in with_root.history]
    assert all(x > 0 for x in figures)
    assert figures[0] != figures[1]
    assert "frechet" not in atoll.run(file, tmp_path / "none").history[0]["diagnostics"]
