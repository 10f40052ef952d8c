"""Group normalisation that leaves channels where they lie.

torch's own wants every channel's pixels next to each other; stacked convolutions have every pixel's channels next to
each other, and would have to be copied there and back. Plain torch operations, so gradients of any order work.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.core import is_functional

DEVICES = {"cuda"}  # where convolutions of stacked clients have channels last


class ChannelsLastGroupNorm(nn.GroupNorm):
    """nn.GroupNorm; stacked clients' pictures stay as they lie in memory."""

    def forward(self, x: Tensor) -> Tensor:
        return group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


def group_norm(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """As torch's."""
    plain = weight is None or bias is None or x.dtype != torch.float32
    if plain or not is_functional() or x.device.type not in DEVICES or x.dim() != 4:
        return F.group_norm(x, groups, weight, bias, eps)
    normalised: Tensor = _GroupNorm.apply(x, weight, bias, groups, eps)  # type: ignore[no-untyped-call]
    return normalised


class _GroupNorm(torch.autograd.Function):
    """y = x * scale + shift, both of an example's channel."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        pixels = _grouped(x, groups)
        mean, spread = _moments(pixels, eps)
        scale = spread * weight.reshape(groups, -1)
        return _together(torch.addcmul(bias.reshape(groups, -1) - mean * scale, pixels, scale))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, _, ctx.groups, ctx.eps = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        pixels, slope, factor = _grouped(x, ctx.groups), _grouped(g, ctx.groups), weight.reshape(ctx.groups, -1)
        mean, spread = _moments(pixels, ctx.eps)  # again: whoever differentiates this must see where they come from
        total = slope.sum((1, 2), keepdim=True)  # of every example and channel
        along = ((slope * pixels).sum((1, 2), keepdim=True) - mean * total) * spread  # with x normalised
        share = 1.0 / (pixels.shape[1] * pixels.shape[2] * pixels.shape[4])
        even = (total * factor).sum(4, keepdim=True) * share
        tilt = (along * factor).sum(4, keepdim=True) * share * spread
        level = torch.addcmul(spread * (mean * tilt - even), pixels, -spread * tilt)
        by_weight, by_bias = (part.sum(0).reshape(weight.shape) for part in (along, total))
        return _together(torch.addcmul(level, slope, spread * factor)), by_weight, by_bias, None, None


def _moments(pixels: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The mean of every group, and one over its deviation."""
    variance, mean = torch.var_mean(pixels, (1, 2, 4), correction=0, keepdim=True)
    return mean, torch.rsqrt(variance + eps)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """(N, channels, H, W) to (N, H, W, groups, channels of each)."""
    pixels: Tensor = x.permute(0, 2, 3, 1).unflatten(3, (groups, -1))  # type: ignore[no-untyped-call]
    return pixels


def _together(x: Tensor) -> Tensor:
    return x.flatten(3).permute(0, 3, 1, 2)
