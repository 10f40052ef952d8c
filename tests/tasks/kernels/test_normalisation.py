"""Group normalisation with channels last is torch's, and so are its gradients, of any order."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from atoll.core import functional
from atoll.tasks.kernels import ChannelsLastGroupNorm, normalisation
from atoll.tasks.kernels.normalisation import group_norm
from atoll.tasks.layers import make_stackable

Norm = Callable[[Tensor, int, Tensor, Tensor, float], Tensor]


@pytest.fixture(autouse=True)
def _on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalisation, "DEVICES", {"cpu"})


def stack() -> tuple[Tensor, Tensor, Tensor]:
    """Pictures of three clients, channels last, and their weights."""
    g = torch.Generator().manual_seed(0)
    x = 3 + torch.randn(3, 2, 5, 4, 8, generator=g).permute(0, 1, 4, 2, 3)
    return x, torch.randn(3, 8, generator=g), torch.randn(3, 8, generator=g)


def slopes(norm: Norm, order: int) -> Any:
    def loss(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return (norm(x, 4, w, b, 1e-5).sin() * torch.arange(1.0, 3.0)[:, None, None, None]).sum()

    def size(*given: Tensor) -> Tensor:
        return torch.stack([(s**2).sum() for s in grad(loss, argnums=(0, 1, 2))(*given)]).sum()

    x, *weights = stack()
    x = x.contiguous() if norm is F.group_norm else x  # under vmap torch's takes no other
    return vmap(grad(loss if order == 1 else size, argnums=(0, 1, 2)))(x, *weights)


@pytest.mark.parametrize("order", [1, 2])
def test_gradients_are_those_of_torch(order: int) -> None:
    with functional():
        ours = slopes(group_norm, order)
    torch.testing.assert_close(ours, slopes(F.group_norm, order), rtol=1e-4, atol=1e-4)


def test_outputs_are_those_of_torch_and_channels_stay_last() -> None:
    x, w, b = stack()
    with functional():
        ours = vmap(lambda x, w, b: group_norm(x, 2, w, b, 1e-5))(x, w, b)
    theirs = vmap(lambda x, w, b: F.group_norm(x, 2, w, b, 1e-5))(x.contiguous(), w, b)
    torch.testing.assert_close(ours, theirs)
    assert ours.stride() == x.stride()


def test_a_gradient_outside_of_vmap_sees_through_it() -> None:
    x, w, b = stack()
    found = []
    for norm in (group_norm, F.group_norm):
        start = x.contiguous().requires_grad_()
        with functional():
            slope = vmap(grad(lambda x, w, b, norm=norm: norm(x, 4, w, b, 1e-5).sin().sum()))(start, w, b)
        found.append(torch.autograd.grad((slope**2).sum(), start)[0])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


def test_a_group_norm_of_a_model_is_replaced_and_outside_an_engine_the_plain_one() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4))
    stackable = make_stackable(model)
    assert isinstance(stackable[1], ChannelsLastGroupNorm)
    assert type(model[1]) is nn.GroupNorm
    x = torch.randn(2, 1, 6, 6)
    assert torch.equal(stackable(x), model(x))
