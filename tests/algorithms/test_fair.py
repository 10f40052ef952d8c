"""q-FFL and AFL: what they become at zero, and their formulas by hand, client by client, in NumPy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.algorithms.afl import AgnosticFL, onto_simplex
from atoll.algorithms.fedavg import FedAvg
from atoll.algorithms.qffl import QFedAvg
from atoll.core import Chain, Traits
from atoll.errors import ConformanceError
from atoll.experiment import Experiment, set_up
from atoll.testing import check_algorithm
from atoll.testing.assertions import distance
from atoll.testing.harness import some, train
from atoll.testing.problems import network, quadratics
from atoll.transforms.weights import EqualWeights
from tests.algorithms.test_algorithms import deltas, same

LR = 0.1
EVEN = Chain((EqualWeights(),))


def test_q_0_is_fedavg_of_clients_that_count_alike() -> None:
    problem = network()
    truth = train(problem, FedAvg(problem.task, LR), 4, some(3), chain=EVEN)
    same(train(problem, QFedAvg(problem.task, LR, q=0.0), 4, some(3)), truth)


def test_places_of_each_clients_own_are_declared_or_refused_by_the_kit() -> None:
    """Under [secure] the server would read each loss by name in the sum."""

    class Silent(AgnosticFL):
        def traits(self) -> Traits:
            return replace(super().traits(), places_by_client=False)

    with pytest.raises(ConformanceError, match=r"declare Traits\(places_by_client=True\)"):
        check_algorithm(Silent)


def test_q_changes_something() -> None:
    problem = network()
    a, b = (train(problem, QFedAvg(problem.task, LR, q=q), 4, some(3)).server["params"] for q in (0.0, 2.0))
    assert distance(a, b) > 1e-3


def test_a_mixture_that_does_not_move_is_fedavg_of_clients_that_count_alike() -> None:
    problem = network()
    truth = train(problem, FedAvg(problem.task, LR), 4, some(3), chain=EVEN)
    same(train(problem, AgnosticFL(problem.task, LR, 6, mixture_lr=0.0), 4, some(3)), truth)


# By hand: linear softmax, whole clients as one batch, so that a client's step is one gradient step.


def raw(**algorithm: Any) -> dict[str, Any]:
    return {
        "rounds": 3,
        "data": "digits",
        "partition": {"name": "dirichlet", "clients": 5, "alpha": 0.4},
        "task": {"model": "linear"},
        "local": {"batch": 0},
        "algorithm": {"lr": LR, **algorithm},
    }


class Oracle:
    """Plain arrays of what the run has: the model at the start, and every client's rows."""

    def __init__(self) -> None:
        setup = set_up(Experiment.parse(raw(name="fedavg")))
        data, owners = setup.dataset.train, setup.training.owners().numpy()
        x = np.asarray(data["x"], np.float64).reshape(len(data["x"]), -1) / 16
        x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
        rows = setup.training.indices.numpy()
        self.x = [x[rows[owners == k]] for k in range(5)]
        self.y = [np.asarray(data["y"])[rows[owners == k]] for k in range(5)]
        params = {k: np.asarray(v, np.float64) for k, v in setup.model["params"].items()}
        weight = next(v for v in params.values() if v.ndim == 2)
        self.start = np.concatenate([weight, next(v for v in params.values() if v.ndim == 1)[:, None]], axis=1)

    def loss_and_step(self, w: np.ndarray, k: int) -> tuple[float, np.ndarray]:
        """F_k(w), and w_k - w."""
        scores = self.x[k] @ w.T
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        n = np.arange(len(p))
        loss = float(-np.log(p[n, self.y[k]]).mean())
        p[n, self.y[k]] -= 1
        return loss, -LR * p.T @ self.x[k] / len(p)


@pytest.fixture(scope="module")
def oracle() -> Oracle:
    return Oracle()


def learned(run: Any) -> np.ndarray:
    params = {k: np.asarray(v, np.float64) for k, v in run.params.items()}
    weight = next(v for v in params.values() if v.ndim == 2)
    return np.concatenate([weight, next(v for v in params.values() if v.ndim == 1)[:, None]], axis=1)


@pytest.mark.parametrize("q", [0.5, 1.0, 5.0])
def test_q_fedavg_is_algorithm_2_of_its_paper(q: float, oracle: Oracle, tmp_path: Path) -> None:
    run = atoll.run(raw(name="qffl", q=q), tmp_path / "run")
    w, L = oracle.start, 1 / LR
    for _ in range(3):
        top, bottom = np.zeros_like(w), 0.0
        for k in range(5):
            loss, moved = oracle.loss_and_step(w, k)
            d = L * -moved
            top += loss**q * d
            bottom += q * loss ** (q - 1) * (d**2).sum() + L * loss**q
        w = w - top / bottom
    assert learned(run) == pytest.approx(w, abs=2e-6)


def simplex_by_bisection(point: np.ndarray) -> np.ndarray:
    """theta with sum of max(x - theta, 0) = 1, found by halving an interval."""
    low, high = point.min() - 1, point.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(point - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(point - low, 0)


def test_afl_is_a_step_of_the_model_and_a_projected_step_of_the_mixture(oracle: Oracle, tmp_path: Path) -> None:
    run = atoll.run(raw(name="afl", mixture_lr=0.3), tmp_path / "run")
    w, mixture = oracle.start, np.full(5, 0.2)
    for _ in range(3):
        both = [oracle.loss_and_step(w, k) for k in range(5)]
        w = w + sum(p * moved for p, (_, moved) in zip(mixture, both, strict=True))
        mixture = simplex_by_bisection(mixture + 0.3 * np.array([loss for loss, _ in both]))
    assert learned(run) == pytest.approx(w, abs=2e-6)
    assert run.history[-1]["diagnostics"]["largest_weight"] == pytest.approx(mixture.max(), abs=1e-5)
    assert mixture.max() > 0.22  # it has moved


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8))
def test_a_projection_is_the_nearest_point_of_the_simplex(point: list[float]) -> None:
    found = onto_simplex(torch.tensor(point, dtype=torch.float64)).numpy()
    assert found == pytest.approx(simplex_by_bisection(np.array(point)), abs=1e-9)
    assert found.sum() == pytest.approx(1.0)


def test_afl_lowers_the_largest_loss(tmp_path: Path) -> None:
    """What they are for: with unequal clients the worst one ends below FedAvg's worst."""
    worst = {}
    for name, more in {"fedavg": {}, "afl": {"mixture_lr": 0.05}}.items():
        run = atoll.run({**raw(name=name, **more), "rounds": 25, "evaluate": {"every": 25}}, tmp_path / name)
        worst[name] = run.history[-1]["clients"]["loss"]["max"]
    assert worst["afl"] < worst["fedavg"]


def test_the_weight_of_a_change_is_the_loss_to_the_q() -> None:
    problem = quadratics()
    change, _ = deltas(problem, FedAvg(problem.task, LR), range(6))
    scaled, equal = deltas(problem, QFedAvg(problem.task, LR, q=1.0), range(6))
    assert (equal == 1).all()
    ratios = [
        (b.reshape(6, -1).norm(dim=1) / a.reshape(6, -1).norm(dim=1)).tolist()
        for a, b in zip(change.values(), scaled.values(), strict=True)
    ]
    assert ratios[0] == pytest.approx(ratios[-1], rel=1e-4)
    assert len({round(r, 4) for r in ratios[0]}) > 1
