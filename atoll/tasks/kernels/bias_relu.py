"""Bias, ReLU and keyed dropout after a product, in one pass over it; and their gradient, in one pass with the bias's.

What is zero afterwards has no gradient, dropped or not: the output, which the next layer keeps anyway, says it all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atoll.kernel_launch import launch
from atoll.tasks.kernels import dropout, operators
from atoll.tasks.kernels.client_axis import apply, fused, in_front, stacked

DEVICES = {"cuda"}
EACH, BR, BF, WARPS = 64, 16, 128, 4  # rows of one program; rows and features of its tiles


def takes_bias_relu(x: Tensor) -> bool:
    """Do an engine's tensors like this one go through one kernel?"""
    return fused(x, DEVICES)


def bias_relu_dropout(x: Tensor, bias: Tensor, key: Tensor | None, layer: int, p: float) -> Tensor:
    """Dropout of relu(x + bias), without the dropout where there is no key."""
    out: Tensor = apply(_BiasReluDropout, x, bias, key, 0, dropout.salt(layer), 0.0 if key is None else p)
    return out


class _BiasReluDropout(torch.autograd.Function):
    """x (lead..., B, ..., features), bias (lead..., features)."""

    @staticmethod
    def forward(x: Tensor, bias: Tensor, key: Tensor | None, lead: int, salt: int, p: float) -> Tensor:
        if operators.usable(x) and bias.dtype == x.dtype:
            out: Tensor = _fused(x, bias, key, lead, salt, p)
            return out
        rows, per_client = stacked(x, lead), stacked(bias, lead)
        positive = torch.relu(rows + per_client.reshape(len(rows), *[1] * (rows.dim() - 2), -1))
        if key is not None:
            shape = (rows.shape[1], rows[0, 0].numel())
            keep = dropout.keep_masks(stacked(key, lead), salt, shape, p).reshape(rows.shape)
            positive = torch.where(keep, positive * (1.0 / (1.0 - p)), 0.0)
        return positive.reshape(x.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, _, ctx.lead, _, ctx.p = inputs
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (h,) = ctx.saved_tensors
        by_input, by_bias = apply(_Gradient, g, h, ctx.lead, 1.0 / (1.0 - ctx.p))
        return by_input, by_bias, None, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, bias: Tensor, key: Tensor | None, lead: int, *how: Any
    ) -> Any:
        n = info.batch_size
        keys = None if key is None else in_front(key, in_dims[2], n)
        given = in_front(x, in_dims[0], n), in_front(bias, in_dims[1], n), keys
        return apply(_BiasReluDropout, *given, lead + 1, *how), 0


class _Gradient(torch.autograd.Function):
    """By the input, and summed over rows by the bias."""

    @staticmethod
    def forward(g: Tensor, h: Tensor, lead: int, scale: float) -> tuple[Tensor, Tensor]:
        if operators.usable(g) and g.dtype == h.dtype:
            by_input, sums = _fused_gradient(g, h, lead, scale)
            return by_input, sums
        by_input = torch.where(h <= 0, 0.0, g * scale)
        return by_input, by_input.flatten(lead, -2).sum(-2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, h, ctx.lead, ctx.scale = inputs
        ctx.save_for_backward(h)

    @staticmethod
    def backward(ctx: Any, by_input: Tensor, by_bias: Tensor) -> tuple[Tensor | None, ...]:
        (h,) = ctx.saved_tensors
        shape = (*h.shape[: ctx.lead], *[1] * (h.dim() - ctx.lead - 1), h.shape[-1])
        return torch.where(h <= 0, 0.0, (by_input + by_bias.reshape(shape)) * ctx.scale), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], g: Tensor, h: Tensor, lead: int, scale: float) -> Any:
        n = info.batch_size
        return apply(_Gradient, in_front(g, in_dims[0], n), in_front(h, in_dims[1], n), lead + 1, scale), (0, 0)


@torch.library.custom_op("atoll::bias_relu_dropout", mutates_args=())
def _fused(x: Tensor, bias: Tensor, key: Tensor | None, lead: int, salt: int, p: float) -> Tensor:
    """By the kernel of dropout."""
    rows = stacked(x, lead).contiguous()
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dropout.drop_rows(rows, stacked(bias, lead).contiguous(), key, stacked(out, lead), salt, p)
    return out


@_fused.register_fake
def _(x: Tensor, bias: Tensor, key: Tensor | None, lead: int, salt: int, p: float) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.custom_op("atoll::relu_dropout_gradient", mutates_args=())
def _fused_gradient(g: Tensor, h: Tensor, lead: int, scale: float) -> tuple[Tensor, Tensor]:
    """By the kernel: parts of a client's rows, as many for any number of clients, and then their sum."""
    clients, features = g.shape[:lead].numel(), g.shape[-1]
    rows = g.shape[lead:-1].numel()
    splits = max(1, -(-rows // EACH))
    out = torch.empty(g.shape, dtype=g.dtype, device=g.device)
    partial = torch.empty((clients, splits, features), dtype=torch.float32, device=g.device)
    if not g.numel():
        return out, partial.new_zeros((*g.shape[:lead], features), dtype=g.dtype)
    block = min(BF, max(16, 1 << (features - 1).bit_length()))
    launch(_kernels().relu_dropout_gradient, (clients * splits, -(-features // block)))(
        g.contiguous(), h.contiguous(), out, partial, rows, splits, scale,
        FEATURES=features, EACH=EACH, BR=BR, BF=block, num_warps=WARPS,
    )  # fmt: skip
    return out, partial.sum(1).to(g.dtype).reshape(*g.shape[:lead], features)


@_fused_gradient.register_fake
def _(g: Tensor, h: Tensor, lead: int, scale: float) -> tuple[Tensor, Tensor]:
    sums = torch.empty((*g.shape[:lead], g.shape[-1]), dtype=g.dtype, device=g.device)
    return torch.empty(g.shape, dtype=g.dtype, device=g.device), sums


def _kernels() -> Any:
    from atoll.tasks.kernels import dropout_kernels

    return dropout_kernels
