"""No example counts for more than the clip, and none decides whether its client counts: very large and tiny numbers."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import atoll
from atoll import rng
from atoll.tasks.dp_sgd import PrivateTask
from atoll.tasks.ghost import ghost_layers
from atoll.tasks.per_example_norms import MAX_NORM, example_norms, linear_gradients
from atoll.tree import Tree
from tests.support.marks import slow
from tests.tasks.test_dp_sgd import KEY, X, Y, both, mlp, task_of

pytestmark = pytest.mark.usefixtures("rough_account")
LARGE = (-3e37, -1e38, *(slow(x) for x in (1e36, -1e36, 3e37)))


def long(value: Tree) -> float:
    """In float64."""
    return math.sqrt(sum(float(x.double().square().sum()) for x in value.values()))


def run(engine: str, first: float, module: nn.Module, **options: Any) -> atoll.Run:
    torch.manual_seed(0)
    x = torch.randn(40, 6)
    x[3] = torch.tensor([first, 0, 0, 0, 0, 0])
    return atoll.simulate(
        module, (x, (x[:, 1] > 0).long()), clients=[list(range(10 * c, 10 * c + 10)) for c in range(4)], rounds=1,
        algorithm={"name": "fedavg", "lr": 0.5}, batch=2, epochs=20, evaluate={"clients": 0}, engine=engine,
        local={"privacy": {"max_norm": 0.5, "noise_multiplier": 1.0, "sampling": "poisson"}}, **options,
    )  # fmt: skip


@pytest.mark.parametrize("engine", ["loop", "vector"])
@pytest.mark.parametrize("first", LARGE)
def test_no_client_is_left_out_for_one_large_example(engine: str, first: float) -> None:
    torch.manual_seed(1)
    history = run(engine, first, nn.Linear(6, 2), on_divergence="drop").history
    assert [line for line in history if "dropped" in line] == []


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_no_run_ends_for_it_either(engine: str) -> None:
    torch.manual_seed(1)
    assert math.isfinite(run(engine, -1e38, nn.Linear(6, 2), on_divergence="stop").history[-1]["train_loss"])


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("first", [*LARGE, math.inf, math.nan])
def test_losses_of_large_examples_add_up_however_many_there_are(quick: bool, first: float) -> None:
    task = task_of(nn.Sequential(nn.Flatten(), nn.Linear(36, 2)))
    private = PrivateTask(task, 0.5, 0.0, ghost=ghost_layers(task) if quick else ())
    x = torch.zeros(1000, 1, 6, 6)
    x[:, 0, 0, 0] = first
    batch = {"x": x, "y": torch.arange(1000) % 2, "mask": torch.ones(1000), "key": KEY}
    for _, loss in both(private, task.init(KEY)["params"], batch):
        assert abs(float(loss)) * 1e12 < 3e38  # as many steps


# How long an example is


@given(st.integers(1, 300), st.floats(-30, 18), st.integers(0, 99))
def test_no_length_is_read_as_less_than_it_is(n: int, size: float, seed: int) -> None:
    x = rng.normal(rng.key(seed), (2, n)) * 10.0**size
    truth = x.double().norm(dim=1)
    assert bool((example_norms(x) >= truth * (1 - 2e-6)).all())
    assert bool((example_norms(x) <= truth * (1 + 2e-6) + 1e-17).all())


@pytest.mark.parametrize("large", [1e-20, 1e-10, 1.0, 1e10, 5e17, 5e18, 1e30])
@pytest.mark.parametrize("clip", [2e-7, 1e-3])
def test_two_factors_that_float32_cannot_square_are_not_longer_than_the_clip(large: float, clip: float) -> None:
    """What came in is large, what came out wrong is 5e-5 over it: the first by 1e17 has a second by 1e-22."""
    wrong, seen = torch.full((1, 3), 5e-5 / large), torch.full((1, 200), large)
    part = linear_gradients(nn.Linear(1, 1), wrong, seen)
    norm = part.square.sqrt()
    kept = norm <= MAX_NORM
    share = torch.where(kept, PrivateTask(task_of(mlp()), clip, 0.0)._factor(norm), 0.0).float()
    assert long(part.total(kept, share)) <= clip


@pytest.mark.parametrize("quick", [True, False])
def test_a_tiny_error_on_a_huge_input_moves_the_sum_by_the_clip_at_most(quick: bool) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 8, bias=False), nn.Linear(8, 2, bias=False))
    task = task_of(module)
    params = {"1.weight": torch.full((8, 36), 1e-30), "2.weight": torch.tensor([[1e-23], [-1e-23]]).expand(2, 8)}
    private = PrivateTask(task, 2e-7, 0.0, ghost=ghost_layers(task) if quick else ())
    batch = {"x": torch.full((1, 1, 6, 6), 5e17), "y": Y[:1], "mask": torch.ones(1), "key": KEY}
    assert long(both(PrivateTask(task, 1e9, 0.0), params, batch)[0][0]) > 1e-6
    assert all(long(g) <= 2e-7 for g, _ in both(private, params, batch))


@pytest.mark.parametrize("quick", [True, False])
def test_rounding_makes_no_example_longer_than_the_clip(quick: bool) -> None:
    task = task_of(mlp())
    params, clip = task.init(KEY)["params"], 0.1
    private = PrivateTask(task, clip, 0.0, ghost=ghost_layers(task) if quick else ())
    found = []
    for i in range(60):
        batch = {"x": X[i : i + 1], "y": Y[i : i + 1], "mask": torch.ones(1), "key": KEY}
        found += [long(g) for g, _ in both(private, params, batch)]
    assert max(found) <= clip
    assert max(found) > clip * (1 - 1e-5)
