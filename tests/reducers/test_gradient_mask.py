"""FedGMA: the mean, held back where signs disagree."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll import rng, tree
from atoll.algorithms.fedavg import FedAvg
from atoll.core import Info, Update
from atoll.reducers import GradientMask, Mean
from atoll.testing.harness import some, train
from atoll.testing.problems import network
from tests.algorithms.test_algorithms import same

KEY = rng.key(0)


def reduced(x: torch.Tensor, w: torch.Tensor, threshold: float) -> torch.Tensor:
    info = Info(torch.arange(len(x)), w, w, 0 * w)
    reducer = GradientMask(threshold)
    value = {"delta": {"w": x}, "buffers": {"b": x}}
    total, _, _ = reducer.finish(reducer.lift(Update(value, w), info, KEY), {}, KEY)
    plain, _, _ = Mean().finish(Mean().lift(Update(value, w), info, KEY), {}, KEY)
    assert torch.equal(total.value["buffers"]["b"], plain.value["buffers"]["b"])
    return total.mean()["delta"]["w"]


def test_no_threshold_is_the_mean() -> None:
    problem = network()
    truth = train(problem, FedAvg(problem.task, 0.1), 3, some(3))
    same(train(problem, FedAvg(problem.task, 0.1), 3, some(3), reducer=GradientMask(0.0)), truth)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 7), st.sampled_from([0.0, 0.3, 0.8, 1.0]))
def test_it_is_the_formula_coordinate_by_coordinate(clients: int, threshold: float) -> None:
    x = rng.normal(rng.key(clients), (clients, 9)).round()  # zeros among them
    w = rng.uniform(rng.key("w", clients), (clients,)) + 0.1
    a = np.abs(np.sign(x.numpy()).mean(0))
    m = np.where(a >= np.float32(threshold), 1.0, a)
    want = m * np.average(x.numpy(), axis=0, weights=w.numpy())
    assert np.allclose(reduced(x, w, threshold).numpy(), want, atol=1e-6)


def test_the_record_says_how_much_goes_all_the_way() -> None:
    reducer, w = GradientMask(1.0), torch.ones(2)
    x = torch.tensor([[1.0, 1.0, -1.0, 2.0], [1.0, -1.0, -3.0, 0.0]])
    info = Info(torch.arange(2), w, w, 0 * w)
    _, _, said = reducer.finish(reducer.lift(Update({"delta": tree.map(torch.clone, {"w": x})}, w), info, KEY), {}, KEY)
    assert float(said["agreed"]) == 0.5
