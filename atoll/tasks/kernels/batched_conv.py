"""Convolutions of many clients, each with weights of its own: (C, B, channels, H, W) against (C, out, in, h, w).

Pixels are rows and channels are columns (channels last in memory), so that each client is one matrix product. With
Triton the patches are gathered inside the product (`operators`); without it they are laid out first (`_patches`), which
moves nine times the bytes for a 3x3 kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.tasks.kernels import operators

Pair = tuple[int, int]
ConvGeometry = tuple[Pair, Pair, Pair]


def output(x: Tensor, w: Tensor, b: Tensor | None, geometry: ConvGeometry) -> Tensor:
    if operators.usable(x):
        return _channels_second(operators.output(x, w, b, *_flat(geometry)))
    c, batch = x.shape[:2]
    size = out_size((x.shape[-2], x.shape[-1]), (w.shape[-2], w.shape[-1]), geometry)
    flat = _matrix(w)
    rows = torch.bmm(_patches(x, (w.shape[-2], w.shape[-1]), size, geometry), flat)
    rows = rows if b is None else rows + b[:, None]
    return _channels_second(rows.reshape(c, batch, *size, -1))


def input_gradient(g: Tensor, w: Tensor, size: Pair, geometry: ConvGeometry) -> Tensor:
    """The gradient of every client's convolution by its input of this size."""
    if operators.usable(g):
        return _channels_second(operators.input_gradient(g, w, list(size), *_flat(geometry)))
    c, batch, _, oh, ow = g.shape
    kh, kw = w.shape[-2:]
    rows = torch.bmm(_rows(g), _matrix(w).mT)  # (C, B * oh * ow, kh * kw * in)
    columns = rows.reshape(c * batch, oh * ow, kh * kw, -1).permute(0, 3, 2, 1).flatten(1, 2)
    (sh, sw), (ph, pw), (dh, dw) = geometry
    folded = F.fold(columns, size, (kh, kw), (dh, dw), (ph, pw), (sh, sw))
    return folded.reshape(c, batch, -1, *size)


def weight_gradient(
    g: Tensor, x: Tensor, kernel: Pair, geometry: ConvGeometry, biased: bool = True
) -> tuple[Tensor, Tensor]:
    """The gradients of every client's convolution by its weights of this size and by its bias, if it is `biased`."""
    if operators.usable(g):
        w, bias = operators.weight_gradient(g, x, list(kernel), *_flat(geometry), biased)
        return w.permute(0, 1, 4, 2, 3), bias
    flat = _rows(g)
    rows = torch.bmm(_patches(x, kernel, (g.shape[-2], g.shape[-1]), geometry).mT, flat)
    c, _, out = rows.shape
    w = rows.reshape(c, *kernel, x.shape[2], out).permute(0, 4, 3, 1, 2)
    return w, flat.sum(1) if biased else flat.new_zeros((c, out))


def _patches(x: Tensor, kernel: Pair, size: Pair, geometry: ConvGeometry) -> Tensor:
    """What each output pixel sees, as a row: (C, B * oh * ow, kh * kw * in)."""
    (sh, sw), (ph, pw), (dh, dw) = geometry
    c, batch, channels = x.shape[:3]
    last = F.pad(x.permute(0, 1, 3, 4, 2), (0, 0, pw, pw, ph, ph))
    s = last.stride()
    windows = last.as_strided(
        (c, batch, *size, *kernel, channels), (s[0], s[1], s[2] * sh, s[3] * sw, s[2] * dh, s[3] * dw, s[4])
    )
    return windows.reshape(c, batch * size[0] * size[1], -1)


def _rows(g: Tensor) -> Tensor:
    """Pixels as rows, channels as columns."""
    return g.permute(0, 1, 3, 4, 2).reshape(len(g), -1, g.shape[2])


def _matrix(w: Tensor) -> Tensor:
    """Weights as (C, kh * kw * in, out)."""
    return w.permute(0, 3, 4, 2, 1).reshape(len(w), -1, w.shape[1])


def _channels_second(x: Tensor) -> Tensor:
    return x.permute(0, 1, 4, 2, 3)


def out_size(size: Pair, kernel: Pair, geometry: ConvGeometry) -> Pair:
    h, w = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(size, kernel, *geometry, strict=True))
    return (h, w)


def _flat(geometry: ConvGeometry) -> tuple[list[int], list[int], list[int]]:
    (sh, sw), (ph, pw), (dh, dw) = geometry
    return [sh, sw], [ph, pw], [dh, dw]


# Whoever differentiates outside of vmap, as attacks by optimisation do, finds operators and not `convolution`'s rules.


def _keep_output(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, w, bias, *ctx.geometry = inputs
    ctx.save_for_backward(x, w)
    ctx.biased = bias is not None


def _output_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    g, how = _channels_second(gradient), _pairs(ctx.geometry)
    by_weight, by_bias = weight_gradient(g, x, (w.shape[-2], w.shape[-1]), how, ctx.biased)
    by_input = input_gradient(g, w, (x.shape[-2], x.shape[-1]), how)
    return by_input, by_weight, by_bias if ctx.biased else None, None, None, None


def _keep_factors(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:2])
    ctx.geometry = inputs[3:]


def _input_gradient_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    g, w = ctx.saved_tensors
    x, how = _channels_second(gradient), _pairs(ctx.geometry)
    by_weight, _ = weight_gradient(g, x, (w.shape[-2], w.shape[-1]), how, False)
    return output(x, w, None, how), by_weight, None, None, None, None


def _weight_gradient_backward(ctx: Any, slope: Tensor, bias: Tensor) -> tuple[Tensor | None, ...]:
    g, x = ctx.saved_tensors
    how, w = _pairs(ctx.geometry), slope.permute(0, 1, 4, 2, 3)
    by_g = output(x, w, bias if ctx.biased else None, how)
    return by_g, input_gradient(g, w, (x.shape[-2], x.shape[-1]), how), None, None, None, None, None


def _keep_bias(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *factors, ctx.biased = inputs
    _keep_factors(ctx, tuple(factors), output)


def _pairs(geometry: Sequence[list[int]]) -> ConvGeometry:
    (sh, sw), (ph, pw), (dh, dw) = geometry
    return (sh, sw), (ph, pw), (dh, dw)


operators.output.register_autograd(_output_backward, setup_context=_keep_output)
operators.input_gradient.register_autograd(_input_gradient_backward, setup_context=_keep_factors)
operators.weight_gradient.register_autograd(_weight_gradient_backward, setup_context=_keep_bias)
