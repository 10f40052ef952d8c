"""Causal attention of short texts with keyed dropout of its weights, one kernel each way.

Scores of 20 tokens are small matrices, of which stacked clients have ten thousands: laying out queries, keys and values
for products, and masking, normalising and dropping in passes of their own take longer than the products. Fused
attention as PyTorch has it draws masks of its own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp

from atoll.kernel_launch import launch
from atoll.tasks.kernels import dropout, operators
from atoll.tasks.kernels.client_axis import apply, fused, in_front, stacked
from atoll.tasks.kernels.wide_operators import precision

DEVICES = {"cuda"}
LONGEST, WIDEST = 64, 64  # tokens and numbers of a head that fit in one program
WARPS, SHORT_WARPS = 4, 1  # of a program; of one whose text has at most 32 tokens


def is_short_text(x: Tensor, heads: int) -> bool:
    """Do these (B, T, width) go through one kernel?"""
    fits = x.dim() == 3 and x.shape[1] <= LONGEST and x.shape[2] // heads <= WIDEST
    return fits and fused(x, DEVICES)


def causal_attention(qkv: Tensor, key: Tensor | None, layer: int, p: float, heads: int) -> Tensor:
    """(B, T, 3 width) queries, keys and values to (B, T, width); weights are dropped where there is a key."""
    out: Tensor = apply(_Attention, qkv, key, 0, dropout.salt(layer), 0.0 if key is None else p, heads)
    return out


class _Attention(torch.autograd.Function):
    """qkv (lead..., B, T, 3 width) and key (lead..., 2) or (lead..., B, 2)."""

    @staticmethod
    def forward(qkv: Tensor, key: Tensor | None, *how: Any) -> Tensor:
        if operators.usable(qkv):
            out: Tensor = _by_kernel(qkv, key, *how)
            return out
        return _plain(qkv, key, *how)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        qkv, key, *ctx.how = inputs
        ctx.save_for_backward(qkv, key)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return apply(_Gradient, g, *ctx.saved_tensors, *ctx.how), None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], qkv: Tensor, key: Tensor | None, lead: int, *how: Any) -> Any:
        n = info.batch_size
        keys = None if key is None else in_front(key, in_dims[1], n)
        return apply(_Attention, in_front(qkv, in_dims[0], n), keys, lead + 1, *how), 0


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(g: Tensor, qkv: Tensor, key: Tensor | None, *how: Any) -> Tensor:
        if operators.usable(qkv) and g.dtype == qkv.dtype:
            gradient: Tensor = _by_kernel_gradient(g, qkv, key, *how)
            return gradient
        return _plain_gradient(g, qkv, key, *how)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        g, qkv, key, *ctx.how = inputs
        ctx.save_for_backward(g, qkv, key)

    @staticmethod
    def backward(ctx: Any, gg: Tensor) -> tuple[Tensor | None, ...]:
        g, qkv, key = ctx.saved_tensors
        by_g, by_qkv = vjp(lambda g, qkv: _plain_gradient(g, qkv, key, *ctx.how), g, qkv)[1](gg)
        return by_g, by_qkv, None, None, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], g: Tensor, qkv: Tensor, key: Tensor | None, lead: int, *how: Any
    ) -> Any:
        n = info.batch_size
        keys = None if key is None else in_front(key, in_dims[2], n)
        return apply(_Gradient, in_front(g, in_dims[0], n), in_front(qkv, in_dims[1], n), keys, lead + 1, *how), 0


def _plain(qkv: Tensor, key: Tensor | None, lead: int, salt: int, p: float, heads: int) -> Tensor:
    rows = stacked(qkv, lead)
    c, b, t, width = *rows.shape[:3], rows.shape[3] // 3
    q, k, v = rows.reshape(c, b, t, 3, heads, width // heads).permute(3, 0, 1, 4, 2, 5).unbind(0)
    scores = q @ k.transpose(-2, -1) / math.sqrt(width // heads)
    future = torch.ones(t, t, dtype=torch.bool, device=qkv.device).triu(1)
    weights = scores.masked_fill(future, -math.inf).softmax(-1)
    if key is not None:
        keep = dropout.keep_masks(stacked(key, lead), salt, (b, heads * t * t), p).reshape(weights.shape)
        weights = torch.where(keep, weights * (1.0 / (1.0 - p)), 0.0)
    return (weights @ v).transpose(2, 3).reshape(*qkv.shape[:-1], width)


def _plain_gradient(g: Tensor, qkv: Tensor, key: Tensor | None, *how: Any) -> Tensor:
    gradient: Tensor = vjp(lambda qkv: _plain(qkv, key, *how), qkv)[1](g)[0]
    return gradient


@torch.library.custom_op("atoll::causal_attention", mutates_args=())
def _by_kernel(qkv: Tensor, key: Tensor | None, lead: int, salt: int, p: float, heads: int) -> Tensor:
    out = torch.empty((*qkv.shape[:-1], qkv.shape[-1] // 3), dtype=qkv.dtype, device=qkv.device)
    _launch(_kernels().attention, (qkv.contiguous(),), key, out, qkv, lead, salt, p, heads)
    return out


@_by_kernel.register_fake
def _(qkv: Tensor, key: Tensor | None, lead: int, salt: int, p: float, heads: int) -> Tensor:
    return torch.empty((*qkv.shape[:-1], qkv.shape[-1] // 3), dtype=qkv.dtype, device=qkv.device)


@torch.library.custom_op("atoll::causal_attention_gradient", mutates_args=())
def _by_kernel_gradient(
    g: Tensor, qkv: Tensor, key: Tensor | None, lead: int, salt: int, p: float, heads: int
) -> Tensor:
    out = torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)
    given = g.contiguous(), qkv.contiguous()
    _launch(_kernels().attention_gradient, given, key, out, qkv, lead, salt, p, heads)
    return out


@_by_kernel_gradient.register_fake
def _(g: Tensor, qkv: Tensor, key: Tensor | None, lead: int, salt: int, p: float, heads: int) -> Tensor:
    return torch.empty(qkv.shape, dtype=qkv.dtype, device=qkv.device)


def _launch(
    kernel: Any, given: tuple[Tensor, ...], key: Tensor | None, out: Tensor, qkv: Tensor, lead: int, salt: int,
    p: float, heads: int,
) -> None:  # fmt: skip
    clients, (batch, t, wide) = qkv.shape[:lead].numel(), qkv.shape[lead:]
    if not qkv.numel():
        return
    d = wide // 3 // heads
    keys = None if key is None else key.reshape(clients, -1, 2).contiguous()
    launch(kernel, (clients * batch * heads,))(
        *given, out if keys is None else keys, out, dropout.as_int32(salt), dropout.threshold(p), d**-0.5,
        1.0 / (1.0 - p), BATCH=batch, T=t, H=heads, D=d, TT=_tile(t), DD=_tile(d), DROPPED=keys is not None,
        PER_ROW=keys is not None and keys.shape[1] == batch > 1, PRECISION=precision(),
        num_warps=SHORT_WARPS if t <= 32 else WARPS,
    )  # fmt: skip


def _tile(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())


def _kernels() -> Any:
    from atoll.tasks.kernels import attention_kernels

    return attention_kernels
