"""One step of gradient descent of many clients' weights, as fast as memory moves.

torch's addcmul takes the rate as one more tensor of the weights' size and reads a number at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atoll.kernel_launch import launch
from atoll.tasks.kernels.operators import usable

_BLOCK = 2048


@torch.library.custom_op("atoll::add_scaled", mutates_args=())
def add_scaled(x: Tensor, y: Tensor, by: Tensor) -> Tensor:
    """x + by y, where `by` is one number, or one for each of the first axis."""
    if not usable(x) or x.dtype != torch.float32 or not x.numel() or not _lie_alike(x, y):
        return torch.addcmul(x, y, by)
    out = torch.empty_like(x)
    clients = 1 if by.numel() == 1 else len(x)
    each = x.numel() // clients
    launch(_kernels().add_scaled, (-(-each // _BLOCK), clients))(
        x, y, by.contiguous(), out, each, BLOCK=_BLOCK, WIDE=x.numel() >= 1 << 31, num_warps=8
    )
    return out


@add_scaled.register_fake
def _(x: Tensor, y: Tensor, by: Tensor) -> Tensor:
    return torch.empty_like(x)


def takes_scale(x: torch.Size, y: torch.Size, by: torch.Size) -> bool:
    """Do tensors of these shapes fit?"""
    one, each = by.numel() == 1, len(x) > 0 and tuple(by) == (x[0], *[1] * (len(x) - 1))
    return x == y and len(by) <= len(x) and (one or each)


def _lie_alike(x: Tensor, y: Tensor) -> bool:
    """The same places in memory, without gaps, and the first axis outermost."""
    order = sorted(range(x.dim()), key=lambda d: (-x.stride()[d], d))
    return x.stride() == y.stride() and x.permute(order).is_contiguous() and (x.dim() == 0 or order[0] == 0)


def _kernels() -> Any:
    from atoll.tasks.kernels import descent_kernels

    return descent_kernels
