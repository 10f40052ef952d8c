"""Group normalisation that leaves channels where they lie, with the activation behind it if there is one.

torch's own wants every channel's pixels next to each other; stacked convolutions have every pixel's channels next to
each other, and would have to be copied there and back. Where Triton is there, nothing as large as the pictures is
written but the result (`group_norm_operators`); plain torch operations do the same elsewhere.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.core import is_functional
from atoll.tasks.kernels import group_norm_operators, operators

DEVICES = {"cuda"}  # where convolutions of stacked clients have channels last


class ChannelsLastGroupNorm(nn.GroupNorm):
    """nn.GroupNorm; stacked clients' pictures stay as they lie in memory."""

    def forward(self, x: Tensor, relu: bool = False) -> Tensor:
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps, relu)


def group_norm(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, relu: bool = False
) -> Tensor:
    """As torch's, and torch.relu of that."""
    if not is_functional() or x.device.type not in DEVICES or x.dim() != 4 or not x.is_floating_point():
        plain = F.group_norm(x, groups, weight, bias, eps)
        return torch.relu(plain) if relu else plain
    channels = x.shape[1]
    weight = x.new_ones(channels) if weight is None else weight
    bias = x.new_zeros(channels) if bias is None else bias
    y, _, _ = _apply(_GroupNorm, x.unsqueeze(0), weight.unsqueeze(0), bias.unsqueeze(0), groups, eps, relu)
    normalised: Tensor = y.squeeze(0)
    return normalised


class _GroupNorm(torch.autograd.Function):
    """Pictures (C, B, channels, H, W) and weights (C, channels): y, every group's mean, one over its deviation."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        if not operators.usable(x):
            return _plain(x, weight, bias, groups, eps, relu)
        y, mean, deviation = group_norm_operators.group_norm(x, weight, bias, groups, eps, relu)
        return y.permute(0, 1, 4, 2, 3), mean, deviation

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        *given, ctx.groups, ctx.eps, ctx.relu = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*given, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor, __: Tensor) -> tuple[Tensor | None, ...]:
        gradients = _apply(_GroupNormGradient, g, *ctx.saved_tensors, ctx.groups, ctx.eps, ctx.relu)
        return *gradients, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> Any:
        return _by_more_clients(_GroupNorm, info.batch_size, in_dims, given)


class _GroupNormGradient(torch.autograd.Function):
    """By pictures, weight and bias."""

    @staticmethod
    def forward(
        g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, deviation: Tensor, groups: int, eps: float,
        relu: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        if not operators.usable(x):
            return _plain_gradient(g, x, weight, bias, groups, eps, relu)
        by_x, by_weight, by_bias = group_norm_operators.group_norm_gradient(
            g, x, weight, bias, mean, deviation, groups, relu
        )
        return by_x.permute(0, 1, 4, 2, 3), by_weight, by_bias

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        g, x, weight, bias, _, _, *ctx.how = inputs
        ctx.save_for_backward(g, x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        """Mean and deviation depend on the pictures: taken again, so that torch sees how."""
        g, x, weight, bias = ctx.saved_tensors
        pull = torch.func.vjp(lambda g, x, weight: _plain_gradient(g, x, weight, bias, *ctx.how), g, x, weight)[1]
        return *pull(slopes), None, None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> Any:
        return _by_more_clients(_GroupNormGradient, info.batch_size, in_dims, given)


def _by_more_clients(f: type[torch.autograd.Function], n: int, in_dims: tuple[Any, ...], given: tuple[Any, ...]) -> Any:
    """Another axis of clients is merged with the one that is there."""
    merged = [
        (x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1) if isinstance(x, Tensor) else x
        for x, dim in zip(given, in_dims, strict=True)
    ]
    results = _apply(f, *merged)
    return tuple(x.unflatten(0, (n, -1)) for x in results), tuple(0 for _ in results)


def _plain(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y = x * scale + shift, both of an example's channel."""
    pixels = _grouped(x, groups)
    mean, deviation = _moments(pixels, eps)
    y = torch.addcmul(_per_channel(bias, pixels), pixels - mean, deviation * _per_channel(weight, pixels))
    y = torch.relu(y) if relu else y
    return _together(y).to(x.dtype), mean.flatten(2), deviation.flatten(2)


def _plain_gradient(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    pixels, slope = _grouped(x, groups), _grouped(g, groups)
    mean, deviation = _moments(pixels, eps)
    factor = _per_channel(weight, pixels)
    normalised = (pixels - mean) * deviation
    if relu:
        slope = torch.where(normalised * factor + _per_channel(bias, pixels) <= 0, 0.0, slope)
    total = slope.sum((2, 3), keepdim=True)  # of every example and channel
    along = (slope * normalised).sum((2, 3), keepdim=True)
    share = 1.0 / (pixels.shape[2] * pixels.shape[3] * pixels.shape[5])
    even = (total * factor).sum(5, keepdim=True) * share
    tilt = (along * factor).sum(5, keepdim=True) * share
    by_x = (slope * factor - even - normalised * tilt) * deviation
    by_weight, by_bias = (part.sum(1).reshape(weight.shape).to(weight.dtype) for part in (along, total))
    return _together(by_x).to(x.dtype), by_weight, by_bias


def _moments(pixels: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The mean of every group, and one over its deviation."""
    variance, mean = torch.var_mean(pixels, (2, 3, 5), correction=0, keepdim=True)
    return mean, torch.rsqrt(variance + eps)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """(C, B, channels, H, W) to (C, B, H, W, groups, channels of each), in float32 at least."""
    x = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    pixels: Tensor = x.permute(0, 1, 3, 4, 2).unflatten(4, (groups, -1))  # type: ignore[no-untyped-call]
    return pixels


def _per_channel(weight: Tensor, pixels: Tensor) -> Tensor:
    return weight.to(pixels.dtype).reshape(len(weight), 1, 1, 1, *pixels.shape[4:])


def _together(x: Tensor) -> Tensor:
    return x.flatten(4).permute(0, 1, 4, 2, 3)


def _apply(f: type[torch.autograd.Function], *args: Any) -> Any:
    return f.apply(*args)  # type: ignore[no-untyped-call]
