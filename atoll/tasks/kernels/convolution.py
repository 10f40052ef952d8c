"""A convolution whose client axis is a batch of matrix products, not groups of channels.

`vmap` turns clients with weights of their own into a grouped convolution, which GPU libraries do badly: the gradient by
the weights most of all. Here the three linear maps that make up a convolution and its gradients (the output, the
gradient by the input, the gradient by the weights) know what to do with a client axis. Each one's derivatives are the
other two, so gradients of any order work.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight

from atoll.core import is_functional
from atoll.tasks.kernels import batched_conv

Pair = tuple[int, int]
ConvGeometry = tuple[Pair, Pair, Pair]  # stride, padding, dilation

DEVICES = {"cuda"}  # where stacking channels into groups is the slower way


class Conv2d(nn.Conv2d):
    """nn.Conv2d; stacked clients go through `batched_conv`."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if is_functional() and x.device.type in DEVICES and x.dim() == 4:
            out: Tensor = _apply(_Output, x, weight, bias, conv_geometry(self))
            return out
        plain: Tensor = super()._conv_forward(x, weight, bias)
        return plain


def conv_geometry(layer: nn.Conv2d) -> ConvGeometry:
    return _pair(layer.stride), _padding(layer), _pair(layer.dilation)


def is_replaceable_conv(layer: nn.Module) -> bool:
    """Is this a convolution that can be made one of ours?"""
    if type(layer) is not nn.Conv2d or layer.groups != 1 or layer.padding_mode != "zeros":
        return False
    reach = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    return layer.padding != "same" or all(r % 2 == 0 for r in reach)  # else it pads one side more than the other


class _Output(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor | None, how: ConvGeometry) -> Tensor:
        return F.conv2d(x, w, b, *how)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, b, ctx.how = inputs
        ctx.save_for_backward(x, w)
        ctx.biased = b is not None

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        gx = _apply(_InputGradient, g, w, tuple(x.shape[-2:]), ctx.how) if ctx.needs_input_grad[0] else None
        if not any(ctx.needs_input_grad[1:3]):  # somebody wants what came out wrong, and no more (`ghost`)
            return gx, None, None, None
        gw, gb = _apply(_WeightGradient, g, x, tuple(w.shape[-2:]), ctx.how, ctx.biased)
        return gx, gw, gb if ctx.biased else None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, w: Tensor, b: Tensor | None, how: ConvGeometry) -> Any:
        n = info.batch_size
        bias = None if b is None else _first(b, in_dims[2], n)
        return batched_conv.output(_first(x, in_dims[0], n), _first(w, in_dims[1], n), bias, how), 0


class _InputGradient(torch.autograd.Function):
    @staticmethod
    def forward(g: Tensor, w: Tensor, size: Pair, how: ConvGeometry) -> Tensor:
        gradient: Tensor = conv2d_input((len(g), w.shape[1], *size), w, g, *how)  # type: ignore[no-untyped-call]
        return gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        g, w, _, ctx.how = inputs
        ctx.save_for_backward(g, w)

    @staticmethod
    def backward(ctx: Any, gg: Tensor) -> tuple[Tensor | None, ...]:
        g, w = ctx.saved_tensors
        gw, _ = _apply(_WeightGradient, g, gg, tuple(w.shape[-2:]), ctx.how, False)
        return _apply(_Output, gg, w, None, ctx.how), gw, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], g: Tensor, w: Tensor, size: Pair, how: ConvGeometry) -> Any:
        n = info.batch_size
        return batched_conv.input_gradient(_first(g, in_dims[0], n), _first(w, in_dims[1], n), size, how), 0


class _WeightGradient(torch.autograd.Function):
    """By the weights and by the bias, if there is one; zeros else."""

    @staticmethod
    def forward(g: Tensor, x: Tensor, kernel: Pair, how: ConvGeometry, biased: bool) -> tuple[Tensor, Tensor]:
        shape = (g.shape[1], x.shape[1], *kernel)
        bias = g.sum((0, 2, 3)) if biased else g.new_zeros(g.shape[1])
        return conv2d_weight(x, shape, g, *how), bias  # type: ignore[no-untyped-call]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        g, x, _, ctx.how, ctx.biased = inputs
        ctx.save_for_backward(g, x)

    @staticmethod
    def backward(ctx: Any, ggw: Tensor, ggb: Tensor) -> tuple[Tensor | None, ...]:
        g, x = ctx.saved_tensors
        gx = _apply(_InputGradient, g, ggw, tuple(x.shape[-2:]), ctx.how)
        bias = ggb if ctx.biased else None
        return _apply(_Output, x, ggw, bias, ctx.how), gx, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], g: Tensor, x: Tensor, kernel: Pair, how: ConvGeometry, biased: bool
    ) -> Any:
        n = info.batch_size
        factors = _first(g, in_dims[0], n), _first(x, in_dims[1], n)
        return batched_conv.weight_gradient(*factors, kernel, how, biased), (0, 0)


def _apply(f: type[torch.autograd.Function], *args: Any) -> Any:
    return f.apply(*args)  # type: ignore[no-untyped-call]


def _first(x: Tensor, dim: int | None, n: int) -> Tensor:
    """The client axis in front; the same for all where there is none."""
    return x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)


def _pair(x: Any) -> Pair:
    return (x, x) if isinstance(x, int) else (int(x[0]), int(x[1]))


def _padding(layer: nn.Conv2d) -> Pair:
    if layer.padding == "valid":
        return (0, 0)
    if layer.padding == "same":
        reach = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        return (reach[0] // 2, reach[1] // 2)
    return _pair(layer.padding)
