"""A layer's recurrent part as one operation is the cells one by one, and so are its gradients, however stacked."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

from atoll import tree
from atoll.core import functional, gradient_and_value
from atoll.engines.capture import Captured
from atoll.engines.fx_simplify import lean
from atoll.engines.record_kernels import record
from atoll.tasks.kernels import StackableLSTM, recurrence
from atoll.tasks.kernels.recurrent import unrolled
from atoll.tasks.layers import make_stackable
from atoll.tasks.models.lstm import LSTM, CharLSTM
from atoll.tree import Tree
from tests.support.interpreter import interpreted, needs_triton

C, T, B, H = 3, 5, 2, 4


def inputs(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gates, bias, weights, and which tokens are real; in float64."""
    g = torch.Generator().manual_seed(seed)
    sizes = ((C, T, B, 4 * H), (C, 4 * H), (C, 4 * H, H))
    gates, bias, w = (torch.randn(size, generator=g, dtype=torch.float64) for size in sizes)
    return gates, bias, w, torch.rand(C, T, B, generator=g) > 0.4


def first_order(f: Callable[..., Any]) -> Callable[..., Any]:
    def loss(gates: Tensor, bias: Tensor, w: Tensor, real: Tensor | None = None) -> Tensor:
        h, c = f(gates, bias, w, real)
        return (h.sin() * h).sum() + (c**2).sum()

    return grad(loss, argnums=(0, 1, 2))


def second_order(f: Callable[..., Any]) -> Callable[..., Any]:
    def size(gates: Tensor, bias: Tensor, w: Tensor, real: Tensor | None = None) -> Tensor:
        return torch.stack([(x**2).sum() for x in first_order(f)(gates, bias, w, real)]).sum()

    return grad(size, argnums=(0, 1, 2))


@pytest.mark.parametrize("masked", [False, True])
def test_it_is_the_cells_one_by_one(masked: bool) -> None:
    gates, bias, w, real = (x[0] for x in inputs())
    mask = real if masked else None
    torch.testing.assert_close(recurrence(gates, bias, w, mask), unrolled(gates, bias, w, mask))


@pytest.mark.parametrize("masked", [False, True])
def test_its_gradients_are_right_to_the_second_order(masked: bool) -> None:
    gates, bias, w, real = (x[0] for x in inputs())
    leaves = [x.requires_grad_() for x in (gates, bias, w)]

    def f(*leaves: Tensor) -> tuple[Tensor, Tensor]:
        return recurrence(*leaves, real if masked else None)

    assert torch.autograd.gradcheck(f, leaves)
    assert torch.autograd.gradgradcheck(f, leaves)


@pytest.mark.parametrize("order", [first_order, second_order])
@pytest.mark.parametrize("dims", [(0, 0, 0, 0), (0, None, None, 0), (0, 0, None, None), (None, 0, 0, None)])
def test_stacked_clients_have_the_gradients_of_each_whatever_they_share(
    order: Callable[..., Any], dims: tuple[int | None, ...]
) -> None:
    given = [x if d == 0 else x[0] for x, d in zip(inputs(), dims, strict=True)]
    torch.testing.assert_close(
        vmap(order(recurrence), in_dims=dims)(*given), vmap(order(unrolled), in_dims=dims)(*given)
    )


def test_gradients_of_single_examples_may_be_stacked_over_clients() -> None:
    def per_example(f: Callable[..., Any]) -> Any:
        def one(gates: Tensor, bias: Tensor, w: Tensor, real: Tensor) -> Any:
            example = lambda g, r: first_order(f)(g[:, None], bias, w, r[:, None])  # noqa: E731
            return vmap(example, in_dims=1)(gates, real)

        return vmap(one)(*inputs())

    torch.testing.assert_close(per_example(recurrence), per_example(unrolled))


def test_a_stack_may_be_differentiated_from_outside() -> None:
    gates, bias, w, _ = inputs()

    def total(f: Callable[..., Any]) -> Callable[..., Any]:
        return grad(lambda w: vmap(f)(gates, bias, w)[0].sin().sum())

    torch.testing.assert_close(total(recurrence)(w), total(unrolled)(w))
    jacobian = [vmap(jacrev(lambda w, g, b, f=f: f(g, b, w)[0]))(w, gates, bias) for f in (recurrence, unrolled)]
    torch.testing.assert_close(*jacobian)


def test_stacked_layers_are_torchs_for_every_client() -> None:
    torch.manual_seed(0)
    ours, x = LSTM(3, H, 2).double(), torch.randn(C, B, T, 3, dtype=torch.float64)
    theirs = nn.LSTM(3, H, 2, batch_first=True).double()
    params = {k: torch.randn(C, *v.shape, dtype=torch.float64) for k, v in ours.named_parameters()}
    stacked = vmap(grad(lambda p, x: functional_call(ours, p, (x,)).sin().sum()))(params, x)
    for client in range(C):
        theirs.load_state_dict({k: v[client] for k, v in params.items()})
        out = theirs(x[client])[0].sin().sum()
        expected = torch.autograd.grad(out, list(theirs.parameters()))
        torch.testing.assert_close([stacked[k][client] for k, _ in theirs.named_parameters()], list(expected))


def test_one_step_has_no_gradient_by_the_recurrent_weights() -> None:
    gates, bias, w, _ = (x[0] for x in inputs())
    by_w = first_order(recurrence)(gates[:1], bias, w)[2]
    assert by_w.shape == w.shape
    assert not by_w.any()


# ------------------------------------------------------------------------------------------------- a user's own nn.LSTM


@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"bias": False, "num_layers": 2}, {"num_layers": 3}])
@pytest.mark.parametrize("started", [False, True])
def test_a_prepared_lstm_is_torchs_with_its_last_states(options: dict[str, Any], started: bool) -> None:
    torch.manual_seed(0)
    theirs = nn.LSTM(3, H, **options)
    ours = make_stackable(nn.Sequential(theirs))[0]
    assert type(ours) is StackableLSTM
    assert type(theirs) is nn.LSTM  # the user's own is left alone
    assert list(ours.state_dict()) == list(theirs.state_dict())
    start = (torch.randn(theirs.num_layers, B, H), torch.randn(theirs.num_layers, B, H)) if started else None
    x = torch.randn(B, T, 3) if theirs.batch_first else torch.randn(T, B, 3)
    found = []
    for layer in (ours, theirs):
        out, (h, c) = layer(x, start)
        by = torch.autograd.grad((out.sin().sum() + (h * c).sum()), list(layer.parameters()))
        found.append([out, h, c, *by])
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


def test_single_texts_and_packed_ones_are_read_as_by_torch() -> None:
    theirs = nn.LSTM(3, H)
    ours = make_stackable(nn.Sequential(theirs))[0]
    packed = nn.utils.rnn.pack_sequence([torch.randn(4, 3), torch.randn(2, 3)])
    assert torch.equal(ours(packed)[0].data, theirs(packed)[0].data)
    x = torch.randn(T, 3)
    assert torch.equal(ours(x)[0], theirs(x)[0])


@pytest.mark.parametrize("options", [{"bidirectional": True}, {"proj_size": 2}])
def test_other_kinds_of_lstm_are_left_alone(options: dict[str, Any]) -> None:
    assert type(make_stackable(nn.Sequential(nn.LSTM(3, H, **options)))[0]) is nn.LSTM


# ------------------------------------------------------------------------------------------------------ recorded steps


def descend(model: nn.Module) -> Callable[..., Tree]:
    def one(params: Tree, x: Tensor, y: Tensor) -> Tree:
        def loss(p: Tree) -> tuple[Tensor, Tree]:
            return F.cross_entropy(functional_call(model, p, (x,)).flatten(0, -2), y.flatten()), {}

        return tree.map(lambda p, g: p - 0.1 * g, params, gradient_and_value(loss, params)[0])

    return vmap(one)


def stacked_step(length: int) -> tuple[nn.Module, Tree, Tensor, Tensor]:
    model = CharLSTM((length,), 11, hidden=7)
    params = {k: v.detach().expand(2, *v.shape).clone() for k, v in model.named_parameters()}
    return model, params, torch.randint(0, 11, (2, 3, length)), torch.randint(0, 11, (2, 3, length))


def test_a_recorded_step_does_not_grow_with_the_text() -> None:
    sizes = []
    for length in (2, 80):
        model, params, x, y = stacked_step(length)

        def flat(*leaves: Tensor, names: tuple[str, ...] = tuple(params), model: nn.Module = model) -> list[Tensor]:
            return list(descend(model)(dict(zip(names, leaves, strict=False)), *leaves[-2:]).values())

        with functional(), torch.no_grad():
            graph = record(flat, [*params.values(), x, y])
        lean(graph, torch.device("cpu"))
        sizes.append(len(graph.graph.nodes))
    assert sizes[0] == sizes[1] < 300


def test_a_recorded_step_is_the_step() -> None:
    model, params, x, y = stacked_step(6)
    captured = Captured(lambda p, x, y: descend(model)(p, x, y), after=0)
    with functional():
        expected = descend(model)(params, x, y)
    torch.testing.assert_close(captured.prepare(params, x, y), expected)
    assert captured.graphs


# ------------------------------------------------------------------------------------------------------------- kernels


@needs_triton
def test_the_triton_kernels_compute_the_same_under_their_interpreter() -> None:
    # Tensors as they may come: permuted, expanded, weights that clients share. bfloat16 only without tl.dot: the
    # interpreter multiplies its bits.
    program = """
import torch
from atoll.tasks.kernels import operators, recurrent_steps

def compared(shape, dtype, masked, shared, strided):
    C, T, B, H = shape
    r = lambda *size: torch.randn(size).to(dtype)
    gates, bias, w, by_h, by_last = r(C, T, B, 4 * H), r(C, 4 * H), r(C, 4 * H, H) / 2, r(C, T, B, H), r(C, B, H)
    real = torch.rand(C, T, B) > 0.4 if masked else None
    if strided:
        gates, by_h, by_last = r(C, B, T, 4 * H).transpose(1, 2), r(C, B, T, H).transpose(1, 2), r(1).expand(C, B, H)
        w, real = r(C, H, 4 * H).mT / 2, None if real is None else real.mT.contiguous().mT
    w = w[:1].expand(C, 4 * H, H) if shared else w
    found = []
    for devices in ({"cpu"}, set()):
        operators.DEVICES = devices
        assert operators.usable(gates) is bool(devices)
        states = recurrent_steps.states(gates, bias, w, real)
        found.append([*states, recurrent_steps.gradient(by_h, by_last, *states[1:], w, real)])
        even = torch.ones((), dtype=dtype).expand(C, T, B, H)
        found[-1].append(recurrent_steps.gradient(even, by_last, *states[1:], w, real))
    exact = dtype is torch.float32
    torch.testing.assert_close(*found, atol=2e-6 if exact else 6e-2, rtol=2e-5 if exact else 6e-2)

for precision, dtypes in (("high", (torch.float32, torch.float16)), ("highest", (torch.float32,))):
    torch.set_float32_matmul_precision(precision)
    for fused in (True, False):
        recurrent_steps.FUSED = fused
        for dtype in dtypes if fused else (*dtypes, torch.bfloat16):
            assert recurrent_steps._is_fused(torch.zeros(1, dtype=dtype)) is (fused and precision == "high")
            compared((2, 3, 3, 7), dtype, False, False, False)
            compared((2, 2, 3, 16), dtype, True, True, False)
            compared((1, 2, 1, 5), dtype, False, True, True)
        compared((2, 2, 35, 33), torch.float32, True, False, True)
"""
    interpreted(program)
