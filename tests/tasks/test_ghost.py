"""Clipped sums from activations and errors: against gradients laid out, and only for models that allow it."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from atoll.core import functional
from atoll.tasks.dp_sgd import PrivateTask
from atoll.tasks.ghost import ghost_layers
from atoll.tasks.models.linear import Linear
from atoll.tasks.models.mlp import MLP
from tests.tasks.test_dp_sgd import KEY, X, Y, batch_of, both, close, cnn, mlp, simulate, task_of


def twice() -> nn.Module:
    layer = nn.Linear(36, 36)
    return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer, nn.Linear(36, 2))


class Coupled(nn.Module):
    """Mixes the examples of a batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


GOOD: dict[str, Any] = {
    "linear": lambda: Linear((1, 6, 6), 2),
    "without a bias": lambda: Linear((1, 6, 6), 2, bias=False),
    "mlp": lambda: MLP((1, 6, 6), 2, widths=[8, 5]),
    "sequential": mlp,
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("clip", [1e-2, 0.7, 1e6])
def test_sums_from_activations_are_those_of_gradients_laid_out(name: str, clip: float) -> None:
    torch.manual_seed(0)
    task = task_of(GOOD[name]())
    layers, params = ghost_layers(task), task.init(KEY)["params"]
    assert layers
    batch = batch_of([3, 9, 27, 0], [1, 1, 1, 0])
    quick = both(PrivateTask(task, clip, 0.5, 5.0, ghost=layers), params, batch)[1]
    plain = both(PrivateTask(task, clip, 0.5, 5.0), params, batch)[1]
    assert list(quick[0]) == list(plain[0])
    assert close(quick[0], plain[0])
    assert float(quick[1]) == pytest.approx(float(plain[1]), rel=1e-5)


def test_an_example_that_is_no_number_counts_as_nothing_here_too() -> None:
    task = task_of(mlp())
    private, params = PrivateTask(task, 0.5, 0.0, ghost=ghost_layers(task)), task.init(KEY)["params"]
    good = both(private, params, batch_of([1, 2], [1, 1]))[1][0]
    for wrong in (math.nan, math.inf):
        x = torch.cat([X[[1, 2]], torch.full((1, 1, 6, 6), wrong)])
        g, loss = both(private, params, {"x": x, "y": Y[[1, 2, 0]], "mask": torch.ones(3), "key": KEY})[1]
        assert close(g, good)
        assert math.isfinite(float(loss))


def test_the_gradients_of_examples_are_not_laid_out() -> None:
    task = task_of(nn.Sequential(nn.Flatten(), nn.Linear(36, 50), nn.Linear(50, 2)))
    params, batch = task.init(KEY)["params"], batch_of(list(range(16)), [1.0] * 16)
    largest = []
    for ghost in (ghost_layers(task), ()):
        with functional(), torch.no_grad(), torch.profiler.profile(profile_memory=True) as seen:
            PrivateTask(task, 1.0, 0.0, ghost=ghost).gradient(params, {}, batch)
        largest.append(max(e.cpu_memory_usage for e in seen.events() or []))
    assert largest[0] < 16 * 36 * 50 * 4 <= largest[1]


@pytest.mark.parametrize(
    "module",
    [cnn(), twice(), nn.Sequential(nn.Flatten(), Coupled(), nn.Linear(36, 2)),
     nn.Sequential(nn.Flatten(), nn.LayerNorm(36), nn.Linear(36, 2)),
     nn.Sequential(nn.Flatten(0, 1), nn.Flatten(), nn.Linear(36, 2))],
)  # fmt: skip
def test_other_models_are_left_to_gradients_laid_out(module: nn.Module) -> None:
    assert ghost_layers(task_of(module)) == ()


def test_a_layer_that_sees_more_than_one_row_of_an_example_is_left_to_them() -> None:
    assert ghost_layers(task_of(nn.Sequential(nn.Linear(6, 3), nn.Flatten(), nn.Linear(18, 2)))) == ()


def test_so_are_weights_that_are_made_of_others() -> None:
    layer = nn.Linear(36, 2)
    nn.utils.parametrizations.weight_norm(layer)
    assert ghost_layers(task_of(nn.Sequential(nn.Flatten(), layer))) == ()


def mixing(kind: str) -> nn.Module:
    layer = nn.Linear(36, 2)
    if kind == "before":
        layer.register_forward_pre_hook(lambda _, given: (given[0] - given[0].mean(0),))
    elif kind == "after":
        layer.register_forward_hook(lambda _, __, out: out - out.mean(0))
    else:
        plain = layer.forward
        layer.forward = lambda x: plain(x - x.mean(0))  # type: ignore[method-assign]
    return nn.Sequential(nn.Flatten(), layer)


@pytest.mark.parametrize("kind", ["before", "after", "instead"])
def test_so_are_layers_that_do_something_else_as_well(kind: str) -> None:
    assert ghost_layers(task_of(mixing(kind))) == ()


@pytest.mark.slow
def test_a_run_takes_the_quick_way_and_agrees_with_the_loop() -> None:
    runs = [simulate(e, "poisson", mlp()) for e in ("loop", {"name": "vector", "chunk": 2}, "threads")]
    for run in runs[1:]:
        assert close(run.params, runs[0].params)
