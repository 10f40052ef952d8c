"""How weights of stacked clients lie in memory where convolutions read and write them at every step."""

from __future__ import annotations

import torch
from torch import Tensor

from atoll.kernel_launch import launch
from atoll.tasks.kernels.operators import usable

_CONVOLUTION = 5  # axes of the weights of a stack: (C, out, in, h, w)
_CHANNELS = 64  # of a tile


def kernel_layout(x: Tensor) -> Tensor:
    """The same numbers without gaps; a stack's convolution in the order (C, out, h, w, in).

    So the forward pass reads them as they are, and a step adds a gradient to weights that lie alike.
    """
    if x.dim() != _CONVOLUTION:
        return x.contiguous()
    return x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)


def plain_layout(x: Tensor) -> Tensor:
    """The same numbers in the order of their axes."""
    if x.is_contiguous() or x.dim() != _CONVOLUTION or not usable(x) or not x.permute(0, 1, 3, 4, 2).is_contiguous():
        return x.contiguous()
    from atoll.tasks.kernels import descent_kernels

    clients, rows, channels, height, width = x.shape
    out, taps = torch.empty_like(x, memory_format=torch.contiguous_format), height * width
    launch(descent_kernels.taps_last, (clients * rows, -(-channels // _CHANNELS)))(
        x, out, TAPS=taps, CHANNELS=channels, BT=1 << (taps - 1).bit_length(), BC=_CHANNELS, num_warps=4
    )
    return out
