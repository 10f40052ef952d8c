"""Max pooling whose gradient is one comparison, not a scatter.

Where windows do not overlap, every input belongs to one output: its gradient is that output's if it was the largest, or
zero. GPU libraries add into zeros instead, several times slower.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.core import is_functional

DEVICES = {"cuda"}


class MaxPool2d(nn.MaxPool2d):
    """nn.MaxPool2d; stacked clients take the quick gradient."""

    def forward(self, x: Tensor) -> Tensor:
        """The largest of every window."""
        return max_pool2d(x, int(self.kernel_size)) if _quick(x) else super().forward(x)  # type: ignore[arg-type]


def poolable(layer: nn.Module) -> bool:
    """Is this a pooling that can be made one of ours?"""
    if type(layer) is not nn.MaxPool2d or not isinstance(layer.kernel_size, int):
        return False
    plain = layer.padding == 0 and layer.dilation == 1 and not layer.ceil_mode and not layer.return_indices
    return plain and layer.stride == layer.kernel_size


def max_pool2d(x: Tensor, size: int) -> Tensor:
    """The largest of every window of size x size, which do not overlap."""
    if not _quick(x):
        return F.max_pool2d(x, size)
    out: Tensor = _MaxPool.apply(x, size)[0]  # type: ignore[no-untyped-call]
    return out


def _quick(x: Tensor) -> bool:
    return is_functional() and x.device.type in DEVICES and x.dim() == 4


class _MaxPool(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
        out, places = F.max_pool2d_with_indices(x, (size, size))
        return out, places

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.size = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.plane = tuple(x.shape[-2:])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return _spread(g, places, ctx.plane, ctx.size), None


def _spread(g: Tensor, places: Tensor, plane: tuple[int, int], k: int) -> Tensor:
    """Each gradient to the place of its window's largest, channels last in memory; what no window covers gets none."""
    h, w = plane
    b, c, oh, ow = g.shape
    own = torch.arange(h * w, device=g.device).reshape(h, w)[: oh * k, : ow * k].reshape(oh, k, ow, k, 1)
    at, slope = (x.permute(0, 2, 3, 1).reshape(b, oh, 1, ow, 1, c) for x in (places, g))
    spread = torch.where(at == own, slope, 0.0).reshape(b, oh * k, ow * k, c).permute(0, 3, 1, 2)
    return F.pad(spread, (0, w - ow * k, 0, h - oh * k)) if (h, w) != (oh * k, ow * k) else spread
