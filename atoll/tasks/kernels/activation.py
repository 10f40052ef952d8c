"""Activations in one pass with what comes before them: a sum of two branches, or a group normalisation."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from atoll.core import is_functional
from atoll.tasks.kernels import group_norm_operators, operators
from atoll.tasks.kernels.normalisation import ChannelsLastGroupNorm

DEVICES = {"cuda"}


class Sequential(nn.Sequential):
    """nn.Sequential; a GroupNorm hands what it normalised to the ReLU behind it before writing it down."""

    def forward(self, x: Any) -> Any:
        layers = list(self)
        while layers:
            layer = layers.pop(0)
            if layers and _fuse(layer, layers[0]):
                x = layer(x, relu=True)
                layers.pop(0)
            else:
                x = layer(x)
        return x


def is_fusible_sequence(layer: nn.Module) -> bool:
    """Does a GroupNorm stand before a ReLU here? (`make_stackable` has made its GroupNorms ours.)"""
    if type(layer) is not nn.Sequential:
        return False
    layers = list(layer)
    return any(_fuse(a, b) for a, b in pairwise(layers))


def add_relu(x: Tensor, y: Tensor) -> Tensor:
    """torch.relu(x + y), as the end of a residual block."""
    if not is_functional() or x.device.type not in DEVICES or x.dim() != 4 or x.shape != y.shape or x.dtype != y.dtype:
        return torch.relu(x + y)
    out: Tensor = _AddRelu.apply(x, y)  # type: ignore[no-untyped-call]
    return out


class _AddRelu(torch.autograd.Function):
    """Pictures (..., channels, H, W)."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        a, b = x.movedim(-3, -1), y.movedim(-3, -1)
        if operators.usable(x) and a.is_contiguous() and b.is_contiguous():
            out: Tensor = group_norm_operators.add_relu(a, b).movedim(-1, -3)
            return out
        return torch.relu(x + y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        (out,) = ctx.saved_tensors
        slope: Tensor = torch.ops.aten.threshold_backward(g, out, 0.0)
        return slope, slope

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, y: Tensor) -> Any:
        n = info.batch_size
        a, b = (
            k.expand(n, *k.shape) if dim is None else k.movedim(dim, 0)
            for k, dim in zip((x, y), in_dims, strict=True)
        )  # fmt: skip
        return _AddRelu.apply(a, b), 0  # type: ignore[no-untyped-call]


def _fuse(norm: nn.Module, activation: nn.Module) -> bool:
    """Hooks between the two would see what they should not."""
    if not isinstance(norm, ChannelsLastGroupNorm) or type(activation) is not nn.ReLU:
        return False
    hooks = (norm._forward_hooks, norm._forward_pre_hooks, norm._backward_hooks, norm._backward_pre_hooks)
    others = (activation._forward_hooks, activation._forward_pre_hooks)
    behind = (activation._backward_hooks, activation._backward_pre_hooks)
    return not any((*hooks, *others, *behind)) and "forward" not in vars(norm) and "forward" not in vars(activation)
