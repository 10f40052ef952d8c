"""How the kernels for many channels are launched: the tiles of each, and who takes which.

Tiles are (rows, columns, depth, stages, warps). In TF32 what bounds them is how often numbers are read from the cache:
a tile of m x n makes m n / (m + n) products of each.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atoll.kernel_launch import launch

Geometry = tuple[list[int], list[int], list[int]]  # stride, padding, dilation
Tile = tuple[int, int, int, int, int]

# By the bytes of a number and by how many channels come out: 32, 64, and 128 for more.
PRODUCT_TILES: dict[tuple[int, int], Tile] = {
    (4, 32): (128, 32, 32, 3, 4),
    (2, 32): (128, 32, 32, 3, 4),
    (4, 64): (128, 64, 32, 3, 4),
    (4, 128): (128, 128, 32, 4, 8),
    (2, 64): (128, 64, 64, 3, 4),
    (2, 128): (128, 128, 64, 3, 8),
}
# Of a tap's channels by channels out. In TF32 newer tensor cores take no operand whose summed axis is not in front:
# with 32 rows it is left to the older instructions, which do.
GRADIENT_TILES: dict[tuple[int, int], Tile] = {
    (4, 32): (32, 32, 32, 3, 4),
    (4, 64): (64, 64, 32, 3, 2),
    (4, 128): (32, 128, 32, 3, 4),
    (2, 32): (32, 32, 64, 3, 4),
    (2, 64): (64, 64, 64, 3, 4),
    (2, 128): (64, 128, 64, 3, 8),
}
TOGETHER = 3  # taps that share what is read of the gradient, where the kernel is as wide
ALONE = {(4, 64)}  # of tiles that are quicker if they do not
PROGRAMS = 600
FEW = 264  # programs that do not fill every core of a large GPU twice: smaller ones leave fewer cores without work
PATCHED_PIXELS, PATCHED_CHANNELS = 256, 256  # at most, at least: patches are laid out for the library's product
_TURNED, _LAID, _UNIT = 64, (32, 128), 32


def in_wide_tiles(x: Tensor, channels: int, n: int) -> bool:
    """Do whole tiles of channels belong to one tap, next to each other in memory?"""
    return x.stride(2) == 1 and channels % _UNIT == 0 and n % _UNIT == 0


def takes_output(x: Tensor, w: Tensor) -> bool:
    return in_wide_tiles(x, w.shape[2], w.shape[1])


def takes_input_gradient(g: Tensor, w: Tensor, stride: list[int], dilation: list[int]) -> bool:
    plain = max(stride) == 1 or max(dilation) == 1  # else taps that reach a pixel are not evenly apart
    return plain and in_wide_tiles(g, w.shape[1], w.shape[2])


def takes_weight_gradient(g: Tensor, x: Tensor) -> bool:
    return in_wide_tiles(x, x.shape[2], g.shape[2]) and g.stride(2) == 1


def output(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, geometry: Geometry) -> None:
    """`out` (C, B, oh, ow, out) of pictures (C, B, in, H, W) and weights (C, out, in, h, w)."""
    _product(x, w.permute(0, 1, 3, 4, 2).contiguous(), bias, out, w.shape[2:], geometry)


def input_gradient(g: Tensor, w: Tensor, out: Tensor, geometry: Geometry) -> None:
    """`out` (C, B, H, W, in). Half numbers are multiplied as they lie."""
    turned = g.element_size() == 2
    laid = w.permute(0, 1, 3, 4, 2)
    weights = laid.contiguous() if turned else _turned(laid)
    _product(g, weights, None, out, (w.shape[1], *w.shape[3:]), geometry, back=True, turned=turned)


def _turned(w: Tensor) -> Tensor:
    """(C, rows, h, w, columns) to (C, columns, h, w, rows)."""
    if not w.is_contiguous():
        return w.permute(0, 4, 2, 3, 1).contiguous()
    c, rows, h, width, columns = w.shape
    out = w.new_empty((c, columns, h, width, rows))
    tiles = -(-rows // _TURNED) * -(-columns // _TURNED)
    launch(_kernels().turn, (tiles, h * width, c))(
        w, out, ROWS=rows, COLUMNS=columns, TAPS=h * width, BLOCK=_TURNED, num_warps=4
    )
    return out


def _product(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    out: Tensor,
    kernel: Any,
    geometry: Geometry,
    back: bool = False,
    turned: bool = False,
) -> None:
    """`kernel`: channels, height, width. `w` (C, n, h, w, channels), or turned (C, channels, h, w, n)."""
    (clients, batch, oh, ow, n), (channels, kh, kw) = out.shape, kernel
    few = -(-batch * oh * ow // 128) * -(-n // 128) * clients < FEW
    bm, bn, bk, stages, warps = PRODUCT_TILES[x.element_size(), _width(n, few)]
    bk = bk if channels % bk == 0 else _UNIT
    (sh, sw), *_ = geometry
    rs, cs = (sh, sw) if back else (1, 1)
    tiles = -(-batch * -(-oh // rs) * -(-ow // cs) // bm) * rs * cs
    launch(_kernels().wide_product, (tiles, -(-n // bn), clients))(
        x, w, out if bias is None else bias, out, batch, *_strides(x),
        N=n, CHANNELS=channels, KH=kh, KW=kw, OH=oh, OW=ow, H=x.shape[3], W=x.shape[4], **_spacing(geometry),
        BACK=back, TURNED=turned, BIASED=bias is not None, WIDE=_reach(x) >= 1 << 31,
        BM=bm, BN=bn, BK=bk, PRECISION=precision(), num_warps=warps, num_stages=stages,
    )  # fmt: skip


def weight_gradient(g: Tensor, x: Tensor, kernel: list[int], geometry: Geometry, biased: bool) -> tuple[Tensor, Tensor]:
    """(C, out, h, w, in) and (C, out); zeros, if there is no bias."""
    clients, batch, out, oh, ow = g.shape
    channels, pixels = x.shape[2], batch * oh * ow
    if pixels <= PATCHED_PIXELS and min(channels, out) >= PATCHED_CHANNELS:
        return _product_of_patches(g, x, kernel, geometry, biased)
    bm, bn, bk, stages, warps = GRADIENT_TILES[g.element_size(), _width(out, False)]
    alone = (g.element_size(), bn) in ALONE
    if channels < bm:
        bm, stages, warps, alone = channels, 3, 4, False
    together = TOGETHER if kernel[1] == TOGETHER == 3 and not alone else 1
    tiles = kernel[0] * kernel[1] // together * -(-channels // bm) * -(-out // bn)
    splits = max(1, min(-(-pixels // 256), -(-PROGRAMS // (tiles * clients))))
    each = -(-pixels // (splits * bk)) * bk
    kind = g.dtype if splits == 1 else torch.float32
    rows = torch.empty((splits, clients, out, *kernel, channels), dtype=kind, device=g.device)
    bias = torch.zeros((splits if biased else 1, clients, out), dtype=torch.float32, device=g.device)
    launch(_kernels().wide_weight_gradient, (tiles, splits, clients))(
        g, x, rows, bias, clients, pixels, *_strides(g), *_strides(x),
        OUT=out, CHANNELS=channels, KH=kernel[0], KW=kernel[1], OH=oh, OW=ow, H=x.shape[3], W=x.shape[4],
        **_spacing(geometry), EACH=each, TAPS=together, BIASED=biased, WIDE=max(_reach(x), _reach(g)) >= 1 << 31,
        BM=bm, BN=bn, BK=bk, PRECISION=precision(), num_warps=warps, num_stages=stages,
    )  # fmt: skip
    summed = rows[0] if splits == 1 else rows.sum(0).to(g.dtype)
    return summed, (bias.sum(0) if len(bias) > 1 else bias[0]).to(g.dtype)


def _product_of_patches(
    g: Tensor, x: Tensor, kernel: list[int], geometry: Geometry, biased: bool
) -> tuple[Tensor, Tensor]:
    """Where there are few pixels, what they see is no larger than the weights."""
    clients, batch, out, oh, ow = g.shape
    pixels, channels = batch * oh * ow, x.shape[2]
    patches = x.new_empty((clients, pixels, *kernel, channels))
    high, wide = _LAID
    launch(_kernels().lay_patches, (-(-pixels // high), kernel[0] * kernel[1], clients))(
        x, patches, pixels, *_strides(x),
        CHANNELS=channels, KH=kernel[0], KW=kernel[1], OH=oh, OW=ow, H=x.shape[3], W=x.shape[4], **_spacing(geometry),
        BM=high, BC=wide, num_warps=4,
    )  # fmt: skip
    slopes = g.permute(0, 1, 3, 4, 2).reshape(clients, pixels, out)
    rows = torch.bmm(slopes.mT, patches.flatten(2)).reshape(clients, out, *kernel, channels)
    return rows, slopes.sum(1) if biased else slopes.new_zeros((clients, out))


def _width(n: int, few: bool) -> int:
    """Columns of a tile for n channels: those of which none is left empty, if that can be."""
    if n % 64:
        return 32
    return 64 if n < 128 or few else 128


def precision() -> str:
    """What products of float32 are made in, as Triton calls it."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _strides(x: Tensor) -> list[int]:
    return [x.stride(d) for d in (0, 1, 3, 4)]


def _reach(x: Tensor) -> int:
    """How far apart one client's numbers lie."""
    return sum((n - 1) * s for n, s in zip(x.shape[1:], x.stride()[1:], strict=True))


def _spacing(geometry: Geometry) -> dict[str, int]:
    (sh, sw), (ph, pw), (dh, dw) = geometry
    return {"SH": sh, "SW": sw, "PH": ph, "PW": pw, "DH": dh, "DW": dw}


def _kernels() -> Any:
    from atoll.tasks.kernels import wide_kernels

    return wide_kernels
