"""Group normalisation with channels last is torch's, and so are its gradients, of any order."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import atoll
from atoll.core import functional
from atoll.engines.capture import Captured
from atoll.engines.vector import stacked
from atoll.tasks.kernels import ChannelsLastGroupNorm, add_relu, convolution, normalisation, residual
from atoll.tasks.kernels.normalisation import group_norm
from atoll.tasks.layers import make_stackable
from atoll.tasks.models.resnet import basic
from atoll.tasks.sequential import Sequential
from tests.support.interpreter import interpreted, needs_triton

Norm = Callable[[Tensor, int, Tensor, Tensor, float], Tensor]


@pytest.fixture(autouse=True)
def _on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalisation, "DEVICES", {"cpu"})
    monkeypatch.setattr(residual, "DEVICES", {"cpu"})


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_numbers_are_normalised_too(dtype: torch.dtype) -> None:
    x, w, b = (k.to(dtype) for k in stack())
    with functional():
        ours = vmap(lambda x, w, b: group_norm(x, 2, w, b, 1e-5))(x, w, b)
    theirs = vmap(lambda x, w, b: F.group_norm(x, 2, w, b, 1e-5))(*(k.double() for k in (x.contiguous(), w, b)))
    assert ours.dtype is dtype
    torch.testing.assert_close(
        ours.double(), theirs, **({} if dtype is torch.float64 else {"atol": 0.03, "rtol": 0.01})
    )


def test_without_weights_it_only_normalises() -> None:
    x, _, _ = stack()
    with functional():
        ours = vmap(lambda x: group_norm(x, 2, None, None, 1e-5))(x)
    torch.testing.assert_close(ours, vmap(lambda x: F.group_norm(x, 2, None, None, 1e-5))(x.contiguous()))


def test_gradients_of_every_example_are_those_of_torch() -> None:
    x, w, b = stack()

    def each(norm: Norm) -> Any:
        def loss(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            return norm(x[None], 4, w, b, 1e-5).sin().sum()

        return vmap(vmap(grad(loss, argnums=(0, 1, 2)), in_dims=(0, None, None)))

    with functional():
        ours = each(group_norm)(x, w, b)
    torch.testing.assert_close(ours, each(F.group_norm)(x.contiguous(), w, b), rtol=1e-4, atol=1e-4)


def test_an_activation_behind_it_changes_no_gradient() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(8, 8, 1), nn.GroupNorm(4, 8), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.GroupNorm(2, 8))
    fused = make_stackable(body)
    assert type(fused) is Sequential
    assert type(body) is nn.Sequential
    assert fused.state_dict().keys() == body.state_dict().keys()
    params = {k: torch.stack([v.detach().double() * s for s in (1, 2, 3)]) for k, v in body.named_parameters()}
    x = stack()[0].double()

    def slopes(model: nn.Module, order: int) -> Any:
        def loss(params: Any, x: Tensor) -> Tensor:
            return add_relu(functional_call(model, params, (x,)), x).sin().sum()

        def size(params: Any, x: Tensor) -> Tensor:
            return torch.stack([(s**2).sum() for s in grad(loss)(params, x).values()]).sum()

        return vmap(grad(loss if order == 1 else size, argnums=(0, 1)))(params, x)

    for order in (1, 2):
        with functional():
            ours = slopes(fused, order)
        torch.testing.assert_close(ours, slopes(body, order), rtol=1e-9, atol=1e-9)


def test_hooks_still_see_what_was_normalised() -> None:
    model = make_stackable(nn.Sequential(nn.GroupNorm(2, 4), nn.ReLU()))
    seen: list[Tensor] = []
    model[0].register_forward_hook(lambda *given: seen.append(given[2]))
    with functional():
        model(torch.randn(2, 4, 3, 3))
    assert (seen[0] < 0).any()


def test_a_captured_stack_of_residual_blocks_learns_what_the_loop_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "DEVICES", {"cpu"})
    monkeypatch.setattr(stacked, "Captured", partial(Captured, after=1))
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, 4, 6, 6, generator=g), torch.randint(0, 3, (24,), generator=g)
    torch.manual_seed(1)
    block = basic(4, 8, 2, partial(nn.GroupNorm, 4))
    model = nn.Sequential(block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    clients = list(torch.arange(24).split([6, 8, 10]))
    loop, stack = (
        atoll.simulate(
            model, (x, y), clients=clients, algorithm={"name": "fedavg", "lr": 0.1}, rounds=2, batch=4, engine=engine
        ).params
        for engine in ("loop", "vector")
    )
    for name, trained in loop.items():
        torch.testing.assert_close(stack[name], trained, atol=1e-5, rtol=1e-5)


@needs_triton
def test_the_triton_kernels_compute_the_same_under_their_interpreter() -> None:
    program = """
import torch
from torch.func import grad, vmap
import atoll
from atoll.core import functional
from atoll.engines.capture import Captured
from atoll.engines.vector import stacked
from atoll.tasks.kernels import group_norm_operators as ops, normalisation, operators, residual

torch.set_num_threads(1)
torch.manual_seed(0)
ops.TILE, ops.TILES, ops.CHANNELS, ops._ROWS, ops._ELEMENTS = 64, 2, 16, 4, 64
normalisation.DEVICES = residual.DEVICES = {"cpu"}

def last(*shape):
    c, b, k, h, w = shape
    return torch.randn(c, b, h, w, k).permute(0, 1, 4, 2, 3)

def ours(f, *given):
    operators.DEVICES = {"cpu"}
    with functional():
        out = f(*given)
    operators.DEVICES = set()
    return out

def both(f, given, **close):
    found = ours(f, *given)
    with functional():
        plain = f(*given)
    torch.testing.assert_close(found, plain, **close)

for shape, groups in (((2, 3, 8, 5, 4), 4), ((1, 1, 6, 1, 7), 2), ((2, 2, 48, 9, 1), 1), ((1, 2, 40, 4, 5), 20)):
    for relu in (False, True):
        x, w, b = 2 + last(*shape), torch.randn(shape[0], shape[2]), torch.randn(shape[0], shape[2])
        kept = last(*shape)

        def f(x, w, b, kept, sliced=False):
            def loss(x, w, b, kept):
                y = normalisation.group_norm(x, groups, w, b, 1e-5, relu)
                y = y[..., :1, :1] if sliced else y
                return (y * (kept if not sliced else 1)).sum(), y
            return vmap(grad(loss, argnums=(0, 1, 2), has_aux=True))(x, w, b, kept)

        both(f, (x, w, b, kept), atol=2e-5, rtol=1e-4)
        both(lambda *given: f(*given, True), (x, w, b, kept), atol=2e-5, rtol=1e-4)
        both(f, (x.contiguous(), w, b, kept[:, :1].expand(shape)), atol=2e-5, rtol=1e-4)  # rows of pixels; one for all
        both(f, (x.bfloat16(), w.bfloat16(), b.bfloat16(), kept.bfloat16()), atol=0.1, rtol=0.05)

x, w, b = 3e3 + last(2, 2, 8, 13, 11), torch.randn(2, 8), torch.randn(2, 8)
found = ours(vmap(lambda x, w, b: normalisation.group_norm(x, 4, w, b, 1e-5)), x, w, b)
theirs = vmap(lambda x, w, b: torch.nn.functional.group_norm(x, 4, w, b, 1e-5))
exact = theirs(*(k.double() for k in (x.contiguous(), w, b)))
torch.testing.assert_close(found.double(), exact, atol=2e-3, rtol=0)  # a number near 3000 is kept to 2e-4

def each(x, w, b):
    def loss(x, w, b):
        return normalisation.group_norm(x[None], 4, w, b, 1e-5, True).sin().sum()
    return vmap(vmap(grad(loss, argnums=(0, 1, 2)), in_dims=(0, None, None)))(x, w, b)
both(each, (last(2, 3, 8, 5, 4), w, b), atol=1e-4, rtol=1e-4)

def second(x, w, b):
    def loss(x, w, b):
        return residual.add_relu(normalisation.group_norm(x, 4, w, b, 1e-5, True), x).sin().sum()
    size = lambda *given: sum((s**2).sum() for s in grad(loss, argnums=(0, 1, 2))(*given))
    return vmap(grad(size, argnums=(0, 1, 2)))(x, w, b)
both(second, (last(2, 3, 8, 5, 4), w, b), atol=1e-3, rtol=1e-3)
"""
    interpreted(program)
