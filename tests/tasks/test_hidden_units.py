"""Hidden units are found in plain networks, and refused where they cannot be told apart."""

import pytest
import torch
from torch import Tensor, nn

from atoll.core import UnitAxis, unit_axes
from atoll.errors import ConfigError
from atoll.tasks import Classification, Supervised
from atoll.tasks.models import CNN, MLP, LeNet, resnet18


def task(model: nn.Module, shape: tuple[int, ...] = (8,)) -> Supervised:
    x, y = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
    return Supervised(model, Classification(3), {"x": x, "y": y, "mask": torch.ones(4)})


def test_a_perceptron_has_the_units_of_its_hidden_layers() -> None:
    axes = unit_axes(task(MLP((8,), 3, [5, 4])).unit_layers())
    assert axes["hidden.0.weight"] == (UnitAxis(0, 5),)
    assert axes["hidden.3.weight"] == (UnitAxis(0, 4), UnitAxis(1, 5))
    assert axes["hidden.3.bias"] == (UnitAxis(0, 4),)
    assert axes["head.weight"] == (UnitAxis(1, 4),)
    assert axes["head.bias"] == ()


def test_a_flattened_channel_is_one_unit() -> None:
    axes = unit_axes(task(CNN((1, 8, 8), 3), (1, 8, 8)).unit_layers())
    assert axes["dense.weight"] == (UnitAxis(0, 128), UnitAxis(1, 64, 4))


@pytest.mark.parametrize("model", [LeNet((1, 16, 16), 3), resnet18((1, 16, 16), 3)])
def test_shipped_networks_of_convolutions_have_units(model: nn.Module) -> None:
    before = {k: v.clone() for k, v in model.state_dict().items()}
    made = task(model, (1, 16, 16))
    assert len(made.unit_layers()) > 4
    assert all(torch.equal(v, made.state(made.init(torch.zeros(2)))[k]) for k, v in before.items())  # nothing was left


class Concatenated(nn.Module):
    """Reads its own input again: the second layer's columns are no units of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 8), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.cat([x, torch.tanh(self.first(x))], 1))
        return out


class Softmax(nn.Module):
    """Every unit is divided by all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.first(x).softmax(1))
        return out


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (nn.Linear(8, 3), "one layer of weights"),
        (nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 3)), "'1' is a LayerNorm"),
        (Concatenated(), "mixed between layers"),
        (Softmax(), "mixed between layers"),
    ],
)
def test_models_without_units_of_their_own_are_refused_with_the_reason(model: nn.Module, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        task(model).unit_layers()
