"""One gradient, two ways: classic autograd takes any module; torch.func's can be stacked and captured."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import (
    _grad_decrement_nesting,
    _grad_increment_nesting,
    _unwrap_for_grad,
    _wrap_for_grad,
    get_inplace_requires_grad_allowed,
    set_inplace_requires_grad_allowed,
)

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
        return _functional_gradient(f, params)
    leaves = tree.map(lambda x: x.detach().requires_grad_(), params)
    with torch.enable_grad():
        value, aux = f(leaves)
    flat = iter(torch.autograd.grad(value, tree.leaves(leaves), materialize_grads=True))
    return tree.map(lambda _: next(flat), leaves), (value.detach(), tree.map(torch.Tensor.detach, aux))


def _functional_gradient(f: Callable[[Tree], tuple[Tensor, Any]], params: Tree) -> tuple[Tree, tuple[Tensor, Any]]:
    """torch.func.grad_and_value(f, has_aux=True)(params), without its detour.

    That imports torch's compiler (a second, at the first gradient of a process) to switch off a mode nobody turned on,
    and takes trees apart a dozen times.
    """
    level = _grad_increment_nesting()
    try:
        with torch.enable_grad():
            inside = tree.map(lambda x: _differentiable(_wrap_for_grad(x, level)), params)
            value, aux = f(inside)
            flat = iter(_gradients(value, tree.leaves(inside)))
            gradient = tree.map(lambda _: _unwrap_for_grad(next(flat), level), params)
            return gradient, (_unwrap_for_grad(value, level), tree.map(lambda x: _unwrap_for_grad(x, level), aux))
    finally:
        _grad_decrement_nesting()


def _differentiable(x: Tensor) -> Tensor:
    """Inside a transform only the transform itself may do this."""
    before = get_inplace_requires_grad_allowed()
    set_inplace_requires_grad_allowed(True)
    try:
        return x.requires_grad_()
    finally:
        set_inplace_requires_grad_allowed(before)


def _gradients(value: Tensor, leaves: list[Tensor]) -> Sequence[Tensor]:
    if not value.requires_grad:
        return [torch.zeros_like(x) for x in leaves]
    # create_graph: under no_grad outside, the backward pass must be seen by an outer transform all the same
    return torch.autograd.grad(value, leaves, create_graph=True, materialize_grads=True)
