"""The products of `batched_conv` as Triton kernels, wrapped as torch operators: graphs and compilers see one node.

Triton comes with PyTorch on machines with a GPU. Where it is not there, `usable` says so and patches are laid out.
"""

import importlib.util
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from atoll.kernel_launch import launch
from atoll.tasks.kernels import wide_operators
from atoll.tasks.kernels.wide_operators import precision

DEVICES = {"cuda"}  # where kernels can be launched
_FOUND = importlib.util.find_spec("triton") is not None
_BLOCK = 1024  # pixels and channels of one program that pools
_PROGRAMS = 800  # enough to keep every core of a large GPU busy, several at a time


def usable(x: Tensor) -> bool:
    """Can tensors like this one go through a kernel?"""
    if not _FOUND or x.device.type not in DEVICES or x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    return x.device.type == "cpu" or capable(x.device)


@lru_cache
def capable(device: torch.device) -> bool:
    """Is this GPU new enough (Ampere) for TF32 and for tiles of 80 kB?"""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def _kernels() -> Any:
    from atoll.tasks.kernels import triton_kernels

    return triton_kernels


def tile_size(n: int, most: int) -> int:
    """A power of two that covers n, between 16 and `most`."""
    return min(most, max(16, 1 << (n - 1).bit_length()))


@torch.library.custom_op("atoll::conv_output", mutates_args=())
def output(
    x: Tensor, w: Tensor, b: Tensor | None, stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    """(C, B, in, H, W) and (C, out, in, h, w) to (C, B, oh, ow, out)."""
    out = _empty_output(x, w, stride, padding, dilation)
    bias = None if b is None else b.contiguous()
    if wide_operators.takes_output(x, w):
        wide_operators.output(x, w, bias, out, (stride, padding, dilation))
        return out
    flat = w.permute(0, 3, 4, 2, 1).contiguous()
    _gather(x, flat, bias, out, w.shape[2], (w.shape[3], w.shape[4]), (stride, padding, dilation), False)
    return out


@output.register_fake
def _(x: Tensor, w: Tensor, b: Any, stride: list[int], padding: list[int], dilation: list[int]) -> Tensor:
    return _empty_output(x, w, stride, padding, dilation)


def _empty_output(x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int]) -> Tensor:
    size = [(x.shape[3 + i] + 2 * padding[i] - dilation[i] * (w.shape[3 + i] - 1) - 1) // stride[i] + 1 for i in (0, 1)]
    return x.new_empty((x.shape[0], x.shape[1], size[0], size[1], w.shape[1]))


@torch.library.custom_op("atoll::conv_input_gradient", mutates_args=())
def input_gradient(
    g: Tensor, w: Tensor, size: list[int], stride: list[int], padding: list[int], dilation: list[int]
) -> Tensor:
    """(C, B, out, oh, ow) and (C, out, in, h, w) to (C, B, H, W, in)."""
    out = g.new_empty((g.shape[0], g.shape[1], size[0], size[1], w.shape[2]))
    if wide_operators.takes_input_gradient(g, w, stride, dilation):
        wide_operators.input_gradient(g, w, out, (stride, padding, dilation))
        return out
    flat = w.permute(0, 3, 4, 1, 2).contiguous()
    _gather(g, flat, None, out, w.shape[1], (w.shape[3], w.shape[4]), (stride, padding, dilation), True)
    return out


@input_gradient.register_fake
def _(g: Tensor, w: Tensor, size: list[int], stride: list[int], padding: list[int], dilation: list[int]) -> Tensor:
    return g.new_empty((g.shape[0], g.shape[1], size[0], size[1], w.shape[2]))


@torch.library.custom_op("atoll::conv_weight_gradient", mutates_args=())
def weight_gradient(
    g: Tensor, x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], biased: bool
) -> tuple[Tensor, Tensor]:
    """(C, B, out, oh, ow) and (C, B, in, H, W) to (C, out, h, w, in) and, if there is a bias, (C, out)."""
    if wide_operators.takes_weight_gradient(g, x):
        return wide_operators.weight_gradient(g, x, kernel, (stride, padding, dilation), biased)
    clients, batch, out, oh, ow = g.shape
    inner, pixels = kernel[0] * kernel[1] * x.shape[2], batch * oh * ow
    wide = g.element_size() == 4
    bm, bk, stages = (32, 32, 1) if wide else (tile_size(inner, 64), 64, 3)  # measured on an H200
    bn = tile_size(out, 64)
    tiles = -(-inner // bm) * -(-out // bn)
    splits = max(1, min(-(-pixels // 256), -(-(_PROGRAMS << wide) // (tiles * clients))))
    rows = torch.empty((splits, clients, out, *kernel, x.shape[2]), dtype=torch.float32, device=g.device)
    bias = torch.empty((splits, clients, out), dtype=torch.float32, device=g.device)
    grid = (tiles, splits, clients)
    launch(_kernels().weight_gradient, grid)(
        g, x, rows, bias, clients, pixels, *g.stride(), *x.stride(),
        OUT=out, CHANNELS=x.shape[2], INNER=inner, KW=kernel[1], OH=oh, OW=ow, H=x.shape[3], W=x.shape[4],
        SH=stride[0], SW=stride[1], PH=padding[0], PW=padding[1], DH=dilation[0], DW=dilation[1],
        EACH=-(-pixels // splits), BM=bm, BN=bn, BK=bk, PRECISION=precision(),
        num_warps=4, num_stages=stages,
    )  # fmt: skip
    if splits == 1:
        return rows[0].to(g.dtype), bias[0].to(g.dtype)
    return rows.sum(0).to(g.dtype), bias.sum(0).to(g.dtype)


@weight_gradient.register_fake
def _(
    g: Tensor, x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], biased: bool
) -> tuple[Tensor, Tensor]:
    return g.new_empty((g.shape[0], g.shape[2], *kernel, x.shape[2])), g.new_empty((g.shape[0], g.shape[2]))


def _gather(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    out: Tensor,
    channels: int,
    kernel: tuple[int, int],
    how: tuple[list[int], list[int], list[int]],
    back: bool,
) -> None:
    clients, batch, oh, ow, n = out.shape
    pixels, inner = batch * oh * ow, kernel[0] * kernel[1] * channels
    bm = next((size for size in (256, 128) if clients * pixels >= size * _PROGRAMS // 2), 64)
    wide, few = x.element_size() == 4, n <= 16 and inner > 32  # measured on an H200
    bm, bn, bk = bm if wide else min(bm, 128), tile_size(n, 64), 16 if wide and (back or few) else 32
    (sh, sw), (ph, pw), (dh, dw) = how
    grid = (-(-pixels // bm), -(-n // bn), clients)
    launch(_kernels().gather_product, grid)(
        x, w, out if bias is None else bias, out, pixels, *x.stride(),
        N=n, CHANNELS=channels, INNER=inner, KW=kernel[1], OH=oh, OW=ow, H=x.shape[3], W=x.shape[4],
        SH=sh, SW=sw, PH=ph, PW=pw, DH=dh, DW=dw, BACK=back, BIASED=bias is not None,
        BM=bm, BN=bn, BK=bk, PRECISION=precision(),
        num_warps=4, num_stages=3 if back or not wide else 1 if few else 2,
    )  # fmt: skip


@torch.library.custom_op("atoll::max_pool", mutates_args=())
def max_pool(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """(N, channels, H, W) to (N, oh, ow, channels): the largest of every window, and its place there."""
    out, places = _empty_pool(x, size)
    _, oh, ow, c = out.shape
    launch(_kernels().max_pool, (-(-out.numel() // _BLOCK),))(
        x, out, places, out.numel(), *x.stride(), C=c, OH=oh, OW=ow, K=size, BLOCK=_BLOCK, WIDE=x.numel() >= 1 << 31
    )
    return out, places


@max_pool.register_fake
def _(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    return _empty_pool(x, size)


def _empty_pool(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
    n, c, h, w = x.shape
    shape = (n, h // size, w // size, c)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.uint8)


@torch.library.custom_op("atoll::max_pool_gradient", mutates_args=())
def max_pool_gradient(g: Tensor, places: Tensor, height: int, width: int, size: int) -> Tensor:
    """(N, channels, oh, ow) and where the largest were to (N, H, W, channels)."""
    n, c, oh, ow = g.shape
    out = g.new_empty((n, height, width, c))
    wide = out.numel() >= 1 << 31
    launch(_kernels().max_pool_gradient, (-(-out.numel() // _BLOCK),))(
        g, places, out, out.numel(), *g.stride(), C=c, H=height, W=width, OH=oh, OW=ow, K=size, BLOCK=_BLOCK, WIDE=wide
    )
    return out


@max_pool_gradient.register_fake
def _(g: Tensor, places: Tensor, height: int, width: int, size: int) -> Tensor:
    return g.new_empty((g.shape[0], height, width, g.shape[1]))
