"""Layer normalisation of stacked clients, each with weights of its own: one kernel, and one for all its gradients.

vmap takes torch's apart: it normalises without weights, multiplies and adds them in passes of their own, and sums over
rows in two more.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vjp

from atoll.kernel_launch import launch
from atoll.tasks.kernels import operators
from atoll.tasks.kernels.client_axis import apply, fused, in_front, stacked

DEVICES = {"cuda"}
WIDEST = 8192  # numbers of a row that one program holds
TILE, EACH, WARPS = 2048, 64, 4  # numbers of a tile; rows whose gradients by weights one program sums


class LayerNorm(nn.LayerNorm):
    """nn.LayerNorm; stacked clients' rows are read once."""

    def forward(self, x: Tensor) -> Tensor:
        wide = self.normalized_shape[0]
        if not fused(x, DEVICES) or self.weight.dtype != x.dtype or wide > WIDEST or x.dim() < 2:
            return super().forward(x)
        normalised: Tensor = apply(_LayerNorm, x, self.weight, self.bias, 0, self.eps)
        return normalised


def is_replaceable_layer_norm(layer: nn.Module) -> bool:
    """Is this a normalisation over one axis, with weights?"""
    if type(layer) is not nn.LayerNorm or len(layer.normalized_shape) != 1:
        return False
    return isinstance(layer.weight, Tensor) and isinstance(layer.bias, Tensor)


class _LayerNorm(torch.autograd.Function):
    """x (lead..., rows..., N), weight and bias (lead..., N)."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, lead: int, eps: float) -> Tensor:
        if operators.usable(x):
            out: Tensor = _rows(x, weight, bias, lead, eps)
            return out
        return _plain(x, weight, bias, lead, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, *ctx.how = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        by_x, by_rest = apply(_Gradient, g, *ctx.saved_tensors, *ctx.how)
        return by_x, *by_rest.unbind(-2), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> Any:
        *tensors, lead, eps = given
        stack = [in_front(x, dim, info.batch_size) for x, dim in zip(tensors, in_dims, strict=False)]
        return apply(_LayerNorm, *stack, lead + 1, eps), 0


class _Gradient(torch.autograd.Function):
    """By x, and (lead..., 2, N) by weight and bias."""

    @staticmethod
    def forward(g: Tensor, x: Tensor, weight: Tensor, lead: int, eps: float) -> tuple[Tensor, Tensor]:
        if operators.usable(x) and g.dtype == x.dtype:
            by_x, by_rest = _rows_gradient(g, x, weight, lead, eps)
            return by_x, by_rest
        return _plain_gradient(g, x, weight, lead, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, lead, eps = inputs
        ctx.how = lead, eps
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, by_x: Tensor, by_rest: Tensor) -> tuple[Tensor | None, ...]:
        back = vjp(lambda *tensors: _plain_gradient(*tensors, *ctx.how), *ctx.saved_tensors)[1]
        return *back((by_x, by_rest)), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> Any:
        *tensors, lead, eps = given
        stack = [in_front(x, dim, info.batch_size) for x, dim in zip(tensors, in_dims, strict=False)]
        return apply(_Gradient, *stack, lead + 1, eps), (0, 0)


def _plain(x: Tensor, weight: Tensor, bias: Tensor, lead: int, eps: float) -> Tensor:
    w, b = (_over_rows(each, x, lead) for each in (weight, bias))
    return F.layer_norm(x, x.shape[-1:], eps=eps) * w + b


def _plain_gradient(g: Tensor, x: Tensor, weight: Tensor, lead: int, eps: float) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
    spread = torch.rsqrt(variance + eps)
    value, slope = (x - mean) * spread, g * _over_rows(weight, x, lead)
    by_x = (slope - slope.mean(-1, keepdim=True) - value * (slope * value).mean(-1, keepdim=True)) * spread
    sums = [each.flatten(lead, -2).sum(-2) for each in (g * value, g)]
    return by_x, torch.stack(sums, -2)


def _over_rows(weight: Tensor, x: Tensor, lead: int) -> Tensor:
    return weight.reshape(*x.shape[:lead], *[1] * (x.dim() - lead - 1), x.shape[-1])


@torch.library.custom_op("atoll::layer_norm", mutates_args=())
def _rows(x: Tensor, weight: Tensor, bias: Tensor, lead: int, eps: float) -> Tensor:
    """By the kernel."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not x.numel():
        return out
    rows, wide, tall = _tile(x, lead)
    parts = -(-rows // tall)
    given = x.contiguous(), stacked(weight, lead).contiguous(), stacked(bias, lead).contiguous()
    launch(_kernels().layer_norm, (x.shape[:lead].numel() * parts,))(
        *given, out, rows, parts, eps, N=x.shape[-1], BR=tall, BN=wide, num_warps=WARPS
    )
    return out


@_rows.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, lead: int, eps: float) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.custom_op("atoll::layer_norm_gradient", mutates_args=())
def _rows_gradient(g: Tensor, x: Tensor, weight: Tensor, lead: int, eps: float) -> tuple[Tensor, Tensor]:
    """By the kernel: parts of a client's rows, as many for any number of clients, and then their sum."""
    out, shape = torch.empty(x.shape, dtype=x.dtype, device=x.device), (*x.shape[:lead], 2, x.shape[-1])
    if not x.numel():
        return out, x.new_zeros(shape)
    rows, wide, tall = _tile(x, lead)
    clients, each = x.shape[:lead].numel(), max(EACH, tall)
    parts = -(-rows // each)
    partial = torch.empty((clients, parts, 2, x.shape[-1]), dtype=torch.float32, device=x.device)
    launch(_kernels().layer_norm_gradient, (clients * parts,))(
        g.contiguous(), x.contiguous(), stacked(weight, lead).contiguous(), out, partial, rows, parts, eps,
        N=x.shape[-1], EACH=each, BR=tall, BN=wide, num_warps=WARPS,
    )  # fmt: skip
    return out, partial.sum(1).to(x.dtype).reshape(shape)


@_rows_gradient.register_fake
def _(g: Tensor, x: Tensor, weight: Tensor, lead: int, eps: float) -> tuple[Tensor, Tensor]:
    by_rest = torch.empty((*x.shape[:lead], 2, x.shape[-1]), dtype=x.dtype, device=x.device)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), by_rest


def _tile(x: Tensor, lead: int) -> tuple[int, int, int]:
    """Rows of a client, and columns and rows of a tile."""
    wide = max(16, 1 << (x.shape[-1] - 1).bit_length())
    return x.shape[lead:-1].numel(), wide, max(1, min(64, TILE // wide))


def _kernels() -> Any:
    from atoll.tasks.kernels import layer_norm_kernels

    return layer_norm_kernels
