"""The quick gradient of max pooling is the usual one."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import grad, vmap

from atoll.core import functional
from atoll.tasks.kernels import pooling
from atoll.tasks.kernels.pooling import MaxPool2d, is_replaceable_pool, max_pool2d
from atoll.tasks.layers import make_stackable


@pytest.fixture(autouse=True)
def _on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "DEVICES", {"cpu"})


@given(
    size=st.integers(2, 3),
    plane=st.tuples(st.integers(4, 8), st.integers(4, 8)),
    channels=st.integers(1, 4),
    levels=st.integers(2, 50),
    last=st.booleans(),
)
def test_outputs_and_gradients_are_those_of_torch_with_ties_and_edges_left_over(
    size: int, plane: tuple[int, int], channels: int, levels: int, last: bool
) -> None:
    g = torch.Generator().manual_seed(levels)
    x = torch.randint(0, levels, (3, 2, channels, *plane), generator=g).float()  # few levels: many ties
    x = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3) if last else x

    def slope(f: object) -> Tensor:
        found: Tensor = vmap(grad(lambda x: (f(x, size) * torch.arange(1.0, 3.0)[:, None, None, None]).square().sum()))(
            x
        )  # type: ignore[operator]
        return found

    with functional():
        assert torch.equal(vmap(lambda x: max_pool2d(x, size))(x), vmap(lambda x: F.max_pool2d(x, size))(x))
        assert torch.equal(slope(max_pool2d), slope(F.max_pool2d))


def test_a_pooling_layer_is_replaced_only_where_windows_do_not_overlap() -> None:
    assert is_replaceable_pool(nn.MaxPool2d(2))
    assert not is_replaceable_pool(nn.MaxPool2d(3, stride=2))
    assert not is_replaceable_pool(nn.MaxPool2d(2, padding=1))
    assert not is_replaceable_pool(nn.MaxPool2d(2, ceil_mode=True))
    assert not is_replaceable_pool(nn.MaxPool2d((2, 3)))
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2))
    made = make_stackable(copy.deepcopy(model))
    assert isinstance(made[1], MaxPool2d)
    x = torch.randn(2, 1, 7, 7)
    assert torch.equal(made(x), model(x))
    with functional():
        assert torch.equal(made(x), model(x))


def test_a_gradient_of_a_gradient_is_that_of_torch() -> None:
    x, v = torch.randn(3, 2, 2, 7, 5, dtype=torch.float64), torch.randn(3, 2, 2, 7, 5, dtype=torch.float64)

    def twice(f: object) -> Tensor:
        slope = grad(lambda x: f(x, 2).pow(3).sum())  # type: ignore[operator]
        found: Tensor = vmap(grad(lambda x, v: (slope(x) * v).sum()))(x, v)
        return found

    with functional():
        assert torch.allclose(twice(max_pool2d), twice(F.max_pool2d))


def test_not_a_number_wins_as_it_does_in_torch() -> None:
    x = torch.randn(2, 1, 1, 4, 4)
    x[0, 0, 0, 1, 1] = x[1, 0, 0, 2, 3] = torch.nan
    with functional():
        found = vmap(lambda x: max_pool2d(x, 2))(x)
    assert torch.equal(found.isnan(), vmap(lambda x: F.max_pool2d(x, 2))(x).isnan())


def test_relu_after_pooling_is_relu_before_it_and_so_are_gradients() -> None:
    x = torch.randn(4, 3, 7, 6).round(decimals=1)  # ties, and windows that are nowhere positive
    x[0] -= 5
    layers = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    ours, found = make_stackable(layers), []
    for net in (layers, ours):
        given = x.clone().requires_grad_()
        out = net(given)
        (out * torch.arange(out.numel()).reshape(out.shape)).sum().backward()
        found.append((out.detach(), given.grad))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    seen: list[torch.Tensor] = []
    ours[1].register_forward_hook(lambda _, given, out: seen.append(given[0]))
    ours(x)
    assert (seen[0] >= 0).all()  # one that is hooked sees what it would have seen
