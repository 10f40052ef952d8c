"""A convolution of stacked clients is every client's own convolution, and so are its gradients, of any order."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

import atoll
from atoll import tree
from atoll.core import functional
from atoll.engines.capture import Captured
from atoll.engines.vector import stacked
from atoll.tasks.kernels import convolution, pooling
from atoll.tasks.kernels import operators as kernels
from atoll.tasks.kernels.convolution import Conv2d, is_replaceable_conv
from atoll.tasks.layers import make_stackable
from atoll.tree import Tree
from tests.support.interpreter import interpreted, needs_triton

CLIENTS = 3


@pytest.fixture(autouse=True)
def _on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the plain convolution is used otherwise."""
    monkeypatch.setattr(convolution, "DEVICES", {"cpu"})


def ours(layer: nn.Conv2d) -> nn.Conv2d:
    made = copy.deepcopy(layer)
    made.__class__ = Conv2d
    return made


def stack(layer: nn.Conv2d, x: tuple[int, ...], seed: int = 0) -> tuple[Tree, Tensor]:
    g = torch.Generator().manual_seed(seed)
    params = {k: 0.3 * torch.randn(CLIENTS, *v.shape, generator=g) for k, v in layer.named_parameters()}
    return params, torch.randn(CLIENTS, *x, generator=g)


def first_order(layer: nn.Module) -> Callable[..., Any]:
    def loss(params: Tree, x: Tensor) -> tuple[Tensor, Tensor]:
        out = functional_call(layer, params, (x,))
        return (out.sin() * out).sum(), out

    def one(params: Tree, x: Tensor) -> Tree:
        (by_params, by_x), out = grad(loss, argnums=(0, 1), has_aux=True)(params, x)
        return {"params": by_params, "x": by_x, "out": out}

    return one


def second_order(layer: nn.Module) -> Callable[..., Any]:
    def size(params: Tree, x: Tensor) -> Tensor:
        slope = grad(lambda p: functional_call(layer, p, (x,)).sin().sum())(params)
        return torch.stack([(v**2).sum() for v in slope.values()]).sum()

    def one(params: Tree, x: Tensor) -> Tree:
        by_params, by_x = grad(size, argnums=(0, 1))(params, x)
        return {"params": by_params, "x": by_x}

    return one


def apart(a: Tree, b: Tree) -> float:
    return max(
        float((x - y).norm() / y.norm().clamp(min=1e-9)) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True)
    )


@given(
    channels=st.tuples(st.integers(1, 5), st.integers(1, 6)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    size=st.tuples(st.integers(6, 9), st.integers(6, 9)),
    bias=st.booleans(),
)
def test_stacked_outputs_and_gradients_are_those_of_grouped_convolutions(
    channels: tuple[int, int],
    kernel: tuple[int, int],
    stride: int,
    padding: int,
    dilation: int,
    size: tuple[int, int],
    bias: bool,
) -> None:
    layer = nn.Conv2d(*channels, kernel, stride, padding, dilation, bias=bias)
    params, x = stack(layer, (2, channels[0], *size))
    with functional():
        found = vmap(first_order(ours(layer)))(params, x)
    assert apart(found, vmap(first_order(layer))(params, x)) < 1e-5


@pytest.mark.parametrize("padding", [0, 1, "same", "valid"])
def test_second_derivatives_are_right_too(padding: Any) -> None:
    layer = nn.Conv2d(2, 3, 3, padding=padding)
    params, x = stack(layer, (2, 2, 6, 7))
    with functional():
        found = vmap(second_order(ours(layer)))(params, x)
    assert apart(found, vmap(second_order(layer))(params, x)) < 1e-4


def test_weights_or_inputs_that_all_clients_share_need_no_client_axis() -> None:
    layer = nn.Conv2d(2, 3, 3)
    params, x = stack(layer, (2, 2, 6, 7))
    one, shared = {k: v[0] for k, v in params.items()}, x[0]
    with functional():
        by_x = vmap(first_order(ours(layer)), in_dims=(None, 0))(one, x)
        by_w = vmap(first_order(ours(layer)), in_dims=(0, None))(params, shared)
    assert apart(by_x, vmap(first_order(layer), in_dims=(None, 0))(one, x)) < 1e-5
    assert apart(by_w, vmap(first_order(layer), in_dims=(0, None))(params, shared)) < 1e-5


def test_outside_an_engine_a_prepared_model_is_the_plain_one() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3, groups=2))
    made = make_stackable(model)
    x = torch.randn(2, 1, 8, 8)
    assert torch.equal(made(x), model(x))
    assert isinstance(made[0], Conv2d)
    assert type(model[0]) is nn.Conv2d  # the user's own is left alone
    assert type(made[2]) is nn.Conv2d


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Conv2d(2, 2, 3, padding="same"), True),
        (nn.Conv2d(2, 2, 2, padding="same"), False),
        (nn.Conv2d(2, 2, 3, groups=2), False),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), False),
        (nn.Conv1d(2, 2, 3), False),
        (nn.Linear(2, 2), False),
    ],
)
def test_only_plain_convolutions_are_replaced(layer: nn.Module, expected: bool) -> None:
    assert is_replaceable_conv(layer) is expected


def test_kernels_are_for_gpus_and_for_floats() -> None:
    assert not kernels.usable(torch.zeros(1))
    assert not kernels.usable(torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize(("generation", "expected"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_an_older_gpu_lays_patches_out(
    generation: tuple[int, int], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: generation)
    kernels.capable.cache_clear()
    try:
        assert kernels.capable(torch.device("cuda")) is expected
    finally:
        kernels.capable.cache_clear()


@needs_triton
def test_the_triton_kernels_compute_the_same_under_their_interpreter() -> None:
    program = """
import torch
from atoll import rng
from atoll.rng import gpu
from atoll.tasks.kernels import batched_conv as products, operators as kernels, pooling, wide_operators as wide
from triton.runtime import interpreter

patch = interpreter._patch_lang_tensor


def patched(*given):  # numpy makes no number of an array with an axis any more
    patch(*given)
    interpreter.tl.core.tensor.__index__ = lambda self: int(self.handle.data.item())


interpreter._patch_lang_tensor = patched

x, w, b = torch.randn(2, 3, 5, 9, 8), torch.randn(2, 4, 5, 3, 2), torch.randn(2, 4)
for how in (((1, 1), (0, 0), (1, 1)), ((2, 1), (1, 2), (1, 2))):
    found = []
    for devices in ({"cpu"}, set()):
        kernels.DEVICES = devices
        assert kernels.usable(x) is bool(devices)
        out = products.output(x, w, b, how)
        g = out.sin()
        found.append([out, products.input_gradient(g, w, (9, 8), how), *products.weight_gradient(g, x, (3, 2), how)])
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)

same, half, reach = ((1, 1), (1, 1), (1, 1)), ((2, 2), (1, 1), (1, 1)), ((1, 1), (2, 2), (2, 2))
# of bfloat16 the interpreter knows no products
for channels, out, size, how, kind, patched_channels in (
    (64, 64, 3, same, torch.float32, 256),
    (64, 128, 3, half, torch.float32, 256),
    (128, 64, 1, ((2, 2), (0, 0), (1, 1)), torch.float32, 256),
    (64, 64, 3, reach, torch.float32, 64),
    (64, 192, 3, half, torch.float16, 256),
    (64, 64, 2, ((3, 2), (0, 1), (1, 1)), torch.float16, 64),
):
    wide.PATCHED_CHANNELS = patched_channels
    x = torch.randn(2, 3, 5, 6, channels).to(kind).permute(0, 1, 4, 2, 3)
    w = (0.1 * torch.randn(2, out, channels, size, size)).to(kind)
    for biased, weights in ((True, w), (False, w.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3))):
        found = []
        for devices in ({"cpu"}, set()):
            kernels.DEVICES = devices
            y = products.output(x, weights, torch.ones(2, out, dtype=kind) if biased else None, how)
            g = y.float().sin().to(kind)
            assert wide.takes_output(x, w) and wide.takes_input_gradient(g, w, how[0], how[2])
            assert wide.takes_weight_gradient(g, x)
            by_weight = products.weight_gradient(g, x, (size, size), how, biased)
            found.append([y, products.input_gradient(g, weights, (5, 6), how), *by_weight])
        assert found[0][2].stride()[2] == 1  # as the product wants its weights
        close = {"atol": 2e-3, "rtol": 1e-3} if kind is torch.float32 else {"atol": 0.3, "rtol": 0.03}
        torch.testing.assert_close(*found, **close)

for size, x in ((2, torch.randint(0, 5, (3, 4, 7, 6)).float()), (3, torch.randn(2, 7, 6, 3).permute(0, 3, 1, 2))):
    found = []
    for devices in ({"cpu"}, set()):
        kernels.DEVICES = devices
        out, places = pooling._pooled(x, size)
        g = torch.arange(1.0, out.numel() + 1).reshape(out.shape)
        found.append([out, places, pooling._scatter(g, places, (7, 6), size)])
    torch.testing.assert_close(*found, atol=0, rtol=0)

slopes = []
start = torch.randn(2, 3, 1, 9, 8), torch.randn(2, 4, 1, 3, 2), torch.randn(2, 4)
for devices in ({"cpu"}, set()):
    kernels.DEVICES = devices
    x, w, b = (each.clone().requires_grad_() for each in start)
    pooled = pooling._pooled(products.output(x, w, b, ((1, 1), (1, 1), (1, 1))).flatten(0, 1), 2)[0].sin()
    first = torch.autograd.grad((pooled**2).sum(), (x, w, b), create_graph=True)
    second = torch.autograd.grad(sum((g**2).sum() for g in first), (x, w, b))
    slopes.append([*first, *second])
torch.testing.assert_close(*slopes, atol=2e-3, rtol=1e-3)

gpu.DEVICES = {"cpu"}
for n in (0, 1, 2, 4097):
    key = rng.key(n)
    assert torch.equal(gpu.bits(key, n), rng.bits(key, (n,)))
    torch.testing.assert_close(gpu.normal(key, n), rng.normal_dp(key, (n,)), atol=2e-6, rtol=0)
"""
    interpreted(program)


@pytest.mark.slow
def test_a_captured_stack_of_convolutions_and_poolings_learns_what_the_loop_learns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pooling, "DEVICES", {"cpu"})
    monkeypatch.setattr(stacked, "Captured", partial(Captured, after=1))
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 1, 16, 16, generator=g), torch.randint(0, 3, (60,), generator=g)
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 2),
        nn.MaxPool2d(3),
        nn.Flatten(),
        nn.Linear(16, 3),
    )
    clients = list(torch.arange(60).split([7, 20, 12, 21]))
    loop, stack = (
        atoll.simulate(
            model, (x, y), clients=clients, algorithm={"name": "fedavg", "lr": 0.1}, rounds=3, batch=5, engine=engine
        )
        for engine in ("loop", "vector")
    )
    assert apart(stack.params, loop.params) < 1e-5
