"""Keyed dropout in one pass: where a kernel draws the mask in registers, neither it nor the input is kept.

Its gradient is dropout of the gradient with the same key. `keep_mask` is the plain form, and says what masks are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atoll.kernel_launch import launch
from atoll.tasks.kernels import operators
from atoll.tasks.kernels.client_axis import apply, fused, in_front, stacked

DEVICES = {"cuda"}  # where a mask that is written costs more than one that is drawn twice
BLOCK, WARPS = 2048, 4  # numbers of one program

_ODD = 0x9E3779B1 - 2**32


def drop(x: Tensor, key: Tensor, layer: int, p: float, per_channel: bool) -> Tensor:
    """x / (1 - p) where `keep_mask` says so, else 0; 0 < p < 1."""
    if fused(x, DEVICES) and threshold(p) < 2**31:
        dropped: Tensor = apply(_Dropout, x, key, 0, salt(layer), p, per_channel)
        return dropped
    rows = x.shape[0]
    wide = x.shape[1] if per_channel else x[0].numel()
    shape = (rows, wide) + (1,) * (x.dim() - 2) if per_channel else x.shape
    return torch.where(keep_mask(key, salt(layer), (rows, wide), p).reshape(shape), x * (1.0 / (1.0 - p)), 0.0)


def keep_mask(key: Tensor, salt: int, shape: tuple[int, int], p: float) -> Tensor:
    """True with probability 1 - p (to 16 bits), addressed by key, layer, row and column.

    A bijective 32-bit finaliser over counters, in place, two draws a word: Threefry costs ten times as much, and the
    masks of a CNN would take longer than its convolutions. Rows do not depend on how many there are.
    """
    rows, wide = shape
    half = (wide + 1) // 2
    word = _signed((key[..., 0] ^ (key[..., 1] << 1) ^ salt) & 0xFFFFFFFF)
    first, word = (1, word[:, None]) if key.dim() == 2 else (rows, word)
    x = torch.arange(first * half, dtype=torch.int32, device=key.device).mul_(_ODD).reshape(first, half) + word
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF)).mul_(0x7FEB352D)
    x.bitwise_xor_((x >> 15).bitwise_and_(0x1FFFF)).mul_(0x846CA68B - 2**32)
    x.bitwise_xor_((x >> 16).bitwise_and_(0xFFFF))
    least = threshold(p)  # the upper 16 bits of x, and then the lower, as signed numbers
    return torch.cat([x >= least, (x << 16) >= least], 1)[:, :wide]


def salt(layer: int) -> int:
    """What tells a layer's masks from another's."""
    return layer * 0x9E3779B9 & 0xFFFFFFFF


def as_int32(salt: int) -> int:
    """As kernels take it: integers beyond that would be another kernel."""
    return salt - (salt >> 31 << 32)


def threshold(p: float) -> int:
    """Words below it, as signed numbers, are dropped."""
    return (round(p * 2**16) - 2**15) << 16


def _signed(word: Tensor) -> Tensor:
    """A 32-bit word held in int64 as int32."""
    return ((word ^ 0x80000000) - 0x80000000).to(torch.int32)


class _Dropout(torch.autograd.Function):
    """x (lead..., B, ...) and key (lead..., 2) or (lead..., B, 2)."""

    @staticmethod
    def forward(x: Tensor, key: Tensor, lead: int, salt: int, p: float, per_channel: bool) -> Tensor:
        if operators.usable(x):
            drawn: Tensor = keyed_dropout(x, key, lead, salt, p, per_channel)
            return drawn
        rows, keys = stacked(x, lead), stacked(key, lead)
        wide = rows.shape[2] if per_channel else rows[0, 0].numel()
        keep = keep_masks(keys, salt, (rows.shape[1], wide), p)
        keep = keep.reshape(*keep.shape, *[1] * (rows.dim() - 3)) if per_channel else keep.reshape(rows.shape)
        return torch.where(keep, rows * (1.0 / (1.0 - p)), 0.0).reshape(x.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, key, *ctx.how = inputs
        ctx.save_for_backward(key)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (key,) = ctx.saved_tensors
        return apply(_Dropout, g, key, *ctx.how), None, None, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, key: Tensor, lead: int, *how: Any) -> Any:
        n = info.batch_size
        return apply(_Dropout, in_front(x, in_dims[0], n), in_front(key, in_dims[1], n), lead + 1, *how), 0


def keep_masks(keys: Tensor, salt: int, shape: tuple[int, int], p: float) -> Tensor:
    """(C, rows, wide): the masks of every key."""
    return torch.stack([keep_mask(key, salt, shape, p) for key in keys])


@torch.library.custom_op("atoll::keyed_dropout", mutates_args=())
def keyed_dropout(x: Tensor, key: Tensor, lead: int, salt: int, p: float, per_channel: bool) -> Tensor:
    """By the kernel; the output lies in memory as the input does, if that has its channels first or last."""
    rows, last = _laid_out(x, lead)
    out = torch.empty_like(rows)
    channels = rows.shape[2] if rows.dim() > 2 else 1
    drop_rows(rows, None, key, out, salt, p, channels=channels, last=last, per_channel=per_channel)
    return out.view(x.shape) if rows.dim() == x.dim() else _unstacked(out, x, lead)


@keyed_dropout.register_fake
def _(x: Tensor, key: Tensor, lead: int, salt: int, p: float, per_channel: bool) -> Tensor:
    out = torch.empty_like(_laid_out(x, lead)[0])
    return out.view(x.shape) if out.dim() == x.dim() else _unstacked(out, x, lead)


def _laid_out(x: Tensor, lead: int) -> tuple[Tensor, bool]:
    """(C, B, ...) with every example in one piece, and whether its channels are last there."""
    rows = stacked(x, lead)
    if rows.is_contiguous():
        return rows, False
    last = rows.dim() > 3 and rows.movedim(2, -1).is_contiguous()
    return (rows, True) if last else (rows.contiguous(), False)


def _unstacked(out: Tensor, x: Tensor, lead: int) -> Tensor:
    return out[0] if lead == 0 else out.unflatten(0, x.shape[:lead])  # type: ignore[no-untyped-call,no-any-return]


def drop_rows(
    x: Tensor, bias: Tensor | None, key: Tensor | None, out: Tensor, salt: int, p: float,
    channels: int = 1, last: bool = False, per_channel: bool = False,
) -> None:  # fmt: skip
    """x (C, B, ...) in one piece; `bias` (C, features) and a ReLU come first, and dropout only where there is a key."""
    clients, rows = x.shape[:2]
    if not x.numel():
        return
    wide = x.numel() // (clients * rows)
    keys = None if key is None else key.reshape(clients, -1, 2).contiguous()
    block = min(BLOCK, max(128, 1 << (wide - 1).bit_length()))
    addressed = last or per_channel  # only then a new kernel for other numbers of channels
    launch(_kernels().keyed_dropout, (clients * rows, -(-wide // block)))(
        x, x if bias is None else bias, x if keys is None else keys, out, rows, wide, as_int32(salt), threshold(p),
        1.0 / (1.0 - p), CHANNELS=channels if addressed else 1, PIXELS=wide // channels if addressed else 1,
        LAST=last, PER_CHANNEL=per_channel, PER_ROW=keys is not None and keys.shape[1] == rows > 1,
        DROPPED=keys is not None, FEATURES=0 if bias is None else bias.shape[-1],
        BLOCK=block, num_warps=min(WARPS, block // 128),
    )  # fmt: skip


def _kernels() -> Any:
    from atoll.tasks.kernels import dropout_kernels

    return dropout_kernels
