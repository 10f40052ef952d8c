"""Group normalisation of stacked pictures as torch operators: graphs see one node each, Triton runs below.

Pictures are (C, B, channels, H, W), weights (C, channels). Results have channels last; pictures that have not are
copied first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atoll.kernel_launch import launch

# What a program loads at once, how often, of how many channels, and the warps it has: 32 numbers a thread at a time.
TILE, TILES, CHANNELS, WARPS = 4096, 4, 128, 4
_ROWS, _ELEMENTS = 32, 2048


@torch.library.custom_op("atoll::group_norm", mutates_args=())
def group_norm(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """To (C, B, H, W, channels), and every group's mean and one over its deviation: (C, B, groups)."""
    x, y = _pixels_in_rows(x), _channels_last(x)
    mean, deviation = (_numbers(x, x.shape[0], x.shape[1], groups) for _ in range(2))
    parts, (grid, tile) = _parts(x), _launch(x)
    sizes, strides = _sizes(x, groups), _strides(x)
    kernels, (c, b, channels, h, w) = _kernels(), x.shape
    launch(kernels.chunk_moments, grid)(x, parts, channels, h * w, grid[1], *strides, b, **tile)
    launch(kernels.group_moments, (c * b,))(
        parts, mean, deviation, *sizes, h * w, eps, CHUNKS=grid[1], EACH=tile["EACH"], **_group_tile(channels, groups)
    )
    launch(kernels.normalise, grid)(
        x, y, weight.contiguous(), bias.contiguous(), mean, deviation, *sizes, h * w, *strides, b, int(relu),
        **tile,
    )  # fmt: skip
    return y, mean, deviation


@group_norm.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, relu: bool) -> tuple[Tensor, Tensor, Tensor]:
    c, b = x.shape[:2]
    return _channels_last(x), _numbers(x, c, b, groups), _numbers(x, c, b, groups)


@torch.library.custom_op("atoll::group_norm_gradient", mutates_args=())
def group_norm_gradient(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, deviation: Tensor, groups: int, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """By the pictures, as (C, B, H, W, channels), by the weight and by the bias."""
    x, g, out = _pixels_in_rows(x), _pixels_in_rows(g), _channels_last(x)
    by_weight, by_bias = (torch.empty_like(k, memory_format=torch.contiguous_format) for k in (weight, bias))
    weight, bias, mean, deviation = (k.contiguous() for k in (weight, bias, mean, deviation))
    even, tilt = torch.empty_like(mean), torch.empty_like(mean)
    parts, (grid, tile) = _parts(x), _launch(x)
    sizes, strides = _sizes(x, groups), (*_strides(g), *_strides(x))
    kernels, (c, b, channels, h, w) = _kernels(), x.shape
    given = (weight, bias, mean, deviation)
    launch(kernels.chunk_slopes, grid)(g, x, parts, *given, *sizes, h * w, grid[1], *strides, b, int(relu), **tile)
    launch(kernels.group_slopes, (c * b,))(
        parts, weight, even, tilt, *sizes, h * w, b, CHUNKS=grid[1], **_group_tile(channels, groups)
    )
    launch(kernels.client_slopes, (c, grid[2]))(
        parts, by_weight, by_bias, channels, ROWS=b * grid[1], BR=_ROWS, BC=tile["BC"], num_warps=WARPS
    )
    launch(kernels.input_slopes, grid)(g, x, out, *given, even, tilt, *sizes, h * w, *strides, b, int(relu), **tile)
    return out, by_weight, by_bias


@group_norm_gradient.register_fake
def _(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, deviation: Tensor, groups: int, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return _channels_last(x), weight.new_empty(weight.shape), bias.new_empty(bias.shape)


@torch.library.custom_op("atoll::add_relu", mutates_args=())
def add_relu(x: Tensor, y: Tensor) -> Tensor:
    """relu(x + y) of two tensors without gaps."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    x, y = x.contiguous(), y.contiguous()
    launch(_kernels().add_relu, (-(-x.numel() // _ELEMENTS),))(x, y, out, x.numel(), BLOCK=_ELEMENTS, num_warps=WARPS)
    return out


@add_relu.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _kernels() -> Any:
    from atoll.tasks.kernels import group_norm_kernels

    return group_norm_kernels


def _launch(x: Tensor) -> tuple[tuple[int, int, int], dict[str, int]]:
    """Programs by example, chunk and block of channels, and what one takes."""
    c, b, channels, h, w = x.shape
    wide = min(CHANNELS, _power(channels))
    high = min(max(1, TILE // wide), _power(h * w))
    each = high * min(TILES, -(-h * w // high))
    grid = (c * b, -(-h * w // each), -(-channels // wide))
    return grid, {"EACH": each, "BP": high, "BC": wide, "num_warps": WARPS}


def _parts(x: Tensor) -> Tensor:
    """Two numbers of every example, chunk and channel."""
    grid, _ = _launch(x)
    return _numbers(x, grid[0], grid[1], 2 * x.shape[2])


def _group_tile(channels: int, groups: int) -> dict[str, int]:
    return {"G": _power(groups), "S": _power(channels // groups), "num_warps": WARPS}


def _sizes(x: Tensor, groups: int) -> tuple[int, int, int]:
    return x.shape[2], x.shape[2] // groups, groups


def _numbers(x: Tensor, *shape: int) -> Tensor:
    return x.new_empty(shape, dtype=torch.float32)


def _channels_last(x: Tensor) -> Tensor:
    c, b, channels, h, w = x.shape
    return x.new_empty((c, b, h, w, channels))


def _pixels_in_rows(x: Tensor) -> Tensor:
    """Pictures whose channels lie next to each other and whose pixels are evenly far apart."""
    _, _, channels, h, w = x.shape
    last = channels == 1 or x.stride(2) == 1
    even = h == 1 or w == 1 or x.stride(3) == w * x.stride(4)
    return x if last and even else x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def _strides(x: Tensor) -> tuple[int, int, int]:
    """From client to client, from example to example, from pixel to pixel."""
    return x.stride(0), x.stride(1), x.stride(3) if x.shape[4] == 1 else x.stride(4)


def _power(n: int) -> int:
    """The next power of two."""
    return 1 << max(0, n - 1).bit_length()
