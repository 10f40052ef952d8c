"""One gradient, two ways: classic autograd takes any module; torch.func's can be stacked and captured."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from atoll import tree
from atoll.tree import Tree

_mode = threading.local()


@contextmanager
def functional(on: bool = True) -> Iterator[None]:
    """Inside, gradients are torch.func's: what an engine needs to run many clients as one stack."""
    before = getattr(_mode, "functional", False)
    _mode.functional = on
    try:
        yield
    finally:
        _mode.functional = before


def is_functional() -> bool:
    """Are gradients torch.func's here?"""
    return getattr(_mode, "functional", False)


def gradient_and_value(f: Callable[[Tree], tuple[Tensor, Any]], params: Tree) -> tuple[Tree, tuple[Tensor, Any]]:
    """The gradient of `f` by `params`, and `f(params)`: a scalar and anything else."""
    if is_functional():
        gradient, (value, aux) = torch.func.grad_and_value(f, has_aux=True)(params)
        return gradient, (value, aux)
    leaves = tree.map(lambda x: x.detach().requires_grad_(), params)
    with torch.enable_grad():
        value, aux = f(leaves)
    flat = iter(torch.autograd.grad(value, tree.leaves(leaves), materialize_grads=True))
    return tree.map(lambda _: next(flat), leaves), (value.detach(), tree.map(torch.Tensor.detach, aux))
