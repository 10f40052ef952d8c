"""Pooling by pairs is torch's pooling: values, places of ties, gradients and their gradients."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import grad, vmap

from atoll.core import functional
from atoll.tasks.kernels import pair_pooling
from atoll.tasks.kernels.pair_pooling import _pooled, pools_pairs
from atoll.tasks.kernels.pooling import MaxPool2d, max_pool2d

Pool = Callable[[Tensor, int], Tensor]


@settings(deadline=None)
@given(
    plane=st.tuples(st.integers(2, 9), st.integers(2, 9)),
    channels=st.integers(1, 4),
    levels=st.integers(1, 50),
    last=st.booleans(),
    kind=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_values_and_places_are_those_of_torch_with_ties_and_edges_left_over(
    plane: tuple[int, int], channels: int, levels: int, last: bool, kind: torch.dtype
) -> None:
    g = torch.Generator().manual_seed(levels)
    x = (torch.randint(-levels, levels, (3, channels, *plane), generator=g) + 0.5).to(kind)  # few levels: many ties
    x = x.to(memory_format=torch.channels_last) if last else x
    for ours, theirs in zip(_pooled(x), F.max_pool2d_with_indices(x, (2, 2)), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def slope(f: Pool, x: Tensor) -> Tensor:
    return grad(lambda x: (f(x, 2) * torch.arange(1.0, 1 + len(x))[:, None, None, None]).square().sum())(x)


@pytest.mark.parametrize("plane", [(6, 8), (7, 5)])
def test_gradients_are_those_of_torch_alone_and_stacked(plane: tuple[int, int]) -> None:
    x = torch.randint(0, 5, (4, 3, 2, *plane), generator=torch.Generator().manual_seed(0)).float()
    with functional():
        assert torch.equal(slope(max_pool2d, x[0]), slope(F.max_pool2d, x[0]))
        stacked = vmap(lambda x: slope(max_pool2d, x))(x)
        assert torch.equal(stacked, vmap(lambda x: slope(F.max_pool2d, x))(x))
        leaf = x[0].clone().requires_grad_()
        max_pool2d(leaf, 2).square().sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, grad(lambda x: F.max_pool2d(x, 2).square().sum())(x[0]))


def test_a_gradient_of_a_gradient_is_that_of_torch() -> None:
    x, v = (torch.randn(3, 2, 2, 7, 5, dtype=torch.float64) for _ in range(2))

    def twice(f: Pool) -> Tensor:
        first = grad(lambda x: f(x, 2).pow(3).sum())
        return vmap(grad(lambda x, v: (first(x) * v).sum()))(x, v)

    with functional():
        assert torch.allclose(twice(max_pool2d), twice(F.max_pool2d))


def test_not_a_number_wins_wherever_it_stands() -> None:
    x = torch.randn(4, 1, 2, 2)
    for i in range(4):
        x[i].view(-1)[i] = torch.nan
    assert _pooled(x)[0].isnan().all()


def test_it_is_used_by_engines_and_only_for_windows_of_two_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Tensor] = []

    def spied(x: Tensor) -> tuple[Tensor, Tensor]:
        asked.append(x)
        return _pooled(x)

    monkeypatch.setattr(pair_pooling, "_pooled", spied)
    x = torch.randn(2, 3, 9, 9)
    max_pool2d(x, 2)
    assert not asked  # a model that is called by itself
    with functional():
        max_pool2d(x, 3)
        nn.MaxPool2d(2)(x)
        assert not asked
        assert torch.equal(max_pool2d(x, 2), F.max_pool2d(x, 2))
        assert torch.equal(MaxPool2d(2)(x), F.max_pool2d(x, 2))
        assert len(asked) == 2
        assert not pools_pairs(torch.zeros(1, 1, 4, 255), 2)
        assert not pools_pairs(torch.zeros(1, 4, 4), 2)
        wide = torch.randn(1, 1, 4, 254)
        assert torch.equal(_pooled(wide)[1], F.max_pool2d_with_indices(wide, (2, 2))[1])
