"""The gradient that can be stacked: torch.func's, bit for bit, without torch's compiler."""

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from atoll.core import functional, gradient_and_value
from atoll.tree import Tree


def _params(clients: int = 4) -> Tree:
    g = torch.Generator().manual_seed(0)
    return {
        "a": {"w": torch.randn(clients, 3, 5, generator=g)},
        "b": torch.randn(clients, 5, generator=g),
        "unused": torch.ones(clients, 2),
    }


def _loss(x: Tensor) -> Callable[[Tree], tuple[Tensor, Tree]]:
    def loss(p: Tree) -> tuple[Tensor, Tree]:
        out = torch.tanh(x @ p["a"]["w"]) + p["b"]
        return out.square().mean(), {"out": out}

    return loss


def _constant(p: Tree) -> tuple[Tensor, Tree]:
    return torch.ones(()), {"out": p["b"].detach()}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("loss", [_loss(torch.linspace(-1, 1, 6).reshape(2, 3)), _constant])
def test_it_is_that_of_torch_func(loss: Callable[[Tree], tuple[Tensor, Tree]], grad: bool) -> None:
    with torch.set_grad_enabled(grad), functional():
        ours = vmap(lambda p: gradient_and_value(loss, p))(_params())
        theirs = vmap(grad_and_value(loss, has_aux=True))(_params())
    flat, same = torch.utils._pytree.tree_leaves(ours), torch.utils._pytree.tree_leaves(theirs)
    assert len(flat) == len(same) == 5
    assert all(torch.equal(x, y) and not x.requires_grad for x, y in zip(flat, same, strict=True))


def test_it_can_be_differentiated_again() -> None:
    def slope(w: Tensor) -> Tensor:
        return gradient_and_value(lambda p: ((p["w"] ** 3).sum(), {}), {"w": w})[0]["w"].sum()

    with functional():
        twice = gradient_and_value(lambda p: (slope(p["w"]), {}), {"w": torch.tensor([1.0, 2.0])})[0]["w"]
    assert twice.tolist() == [6.0, 12.0]


def test_after_an_error_the_next_gradient_is_right() -> None:
    def wrong(p: Tree) -> tuple[Tensor, Tree]:
        raise KeyError("no such layer")

    with functional():
        with pytest.raises(KeyError):
            gradient_and_value(wrong, {"w": torch.ones(2)})
        assert gradient_and_value(lambda p: (p["w"].sum(), {}), {"w": torch.ones(2)})[0]["w"].tolist() == [1.0, 1.0]


@pytest.mark.slow
def test_a_captured_step_does_not_import_the_compiler() -> None:
    code = """
import sys, torch
from torch.func import vmap
from atoll.core.autograd import functional, gradient_and_value
from atoll.engines.capture import Captured
def step(p):
    return vmap(lambda p: gradient_and_value(lambda q: (q["w"].square().sum(), {}), p)[0])(p)
captured = Captured(step, after=1)
captured({"w": torch.ones(3, 2)})
assert captured({"w": torch.ones(3, 2)})["w"].tolist() == [[2.0, 2.0]] * 3 and captured.graphs
assert not {"torch._dynamo", "sympy"} & set(sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
