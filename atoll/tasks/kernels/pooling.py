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
from atoll.tasks.kernels import operators
from atoll.tasks.kernels.pair_pooling import pool_pairs, pools_pairs

Pair = tuple[int, int]
DEVICES = {"cuda"}
_LARGEST = 15  # windows have at most 255 places


class MaxPool2d(nn.MaxPool2d):
    """nn.MaxPool2d; stacked clients take the quick gradient."""

    def forward(self, x: Tensor) -> Tensor:
        size = int(self.kernel_size)  # type: ignore[arg-type]
        return max_pool2d(x, size) if _has_kernel(x) or pools_pairs(x, size) else super().forward(x)


def is_replaceable_pool(layer: nn.Module) -> bool:
    """Is this a pooling that can be made one of ours?"""
    if type(layer) is not nn.MaxPool2d or not isinstance(layer.kernel_size, int):
        return False
    plain = layer.padding == 0 and layer.dilation == 1 and not layer.ceil_mode and not layer.return_indices
    return plain and layer.stride == layer.kernel_size <= _LARGEST


def max_pool2d(x: Tensor, size: int) -> Tensor:
    """The largest of every window of size x size, which do not overlap."""
    if not _has_kernel(x) or size > _LARGEST:
        return pool_pairs(x) if pools_pairs(x, size) else F.max_pool2d(x, size)
    out: Tensor = _MaxPool.apply(x, size)[0]  # type: ignore[no-untyped-call]
    return out


def _has_kernel(x: Tensor) -> bool:
    return is_functional() and x.device.type in DEVICES and x.dim() == 4


class _MaxPool(torch.autograd.Function):
    """The largest, and its place in the window: row * size + column."""

    @staticmethod
    def forward(x: Tensor, size: int) -> tuple[Tensor, Tensor]:
        return _pooled(x, size)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, ctx.size = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])
        ctx.plane = tuple(x.shape[-2:])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        gradient: Tensor = _Scatter.apply(g, places, ctx.plane, ctx.size)  # type: ignore[no-untyped-call]
        return gradient, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, size: int) -> Any:
        out, places = _pooled(x.movedim(in_dims[0], 0).flatten(0, 1), size)
        return (_by_client(out, info.batch_size), _by_client(places, info.batch_size)), (0, 0)


class _Scatter(torch.autograd.Function):
    """Each gradient to the place of its window's largest."""

    @staticmethod
    def forward(g: Tensor, places: Tensor, plane: Pair, size: int) -> Tensor:
        return _scatter(g, places, plane, size)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, places, _, ctx.size = inputs
        ctx.save_for_backward(places)

    @staticmethod
    def backward(ctx: Any, gg: Tensor) -> tuple[Tensor | None, ...]:
        (places,) = ctx.saved_tensors
        return _gather(gg, places, ctx.size), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], g: Tensor, places: Tensor, plane: Pair, size: int) -> Any:
        n = info.batch_size
        flat = [
            (x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0)).flatten(0, 1)
            for x, dim in zip((g, places), in_dims, strict=False)
        ]
        return _by_client(_scatter(flat[0], flat[1].contiguous(), plane, size), n), 0


def _by_client(x: Tensor, clients: int) -> Tensor:
    return x.reshape(clients, -1, *x.shape[1:])


def _pooled(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(N, channels, H, W) to the largest of every window, alike, and their places, channels last."""
    if operators.usable(x):
        out, places = operators.max_pool(x, k)
        return out.permute(0, 3, 1, 2), places
    out, at = F.max_pool2d_with_indices(x, (k, k))
    width = x.shape[-1]
    places = at // width % k * k + at % width % k
    return out, places.permute(0, 2, 3, 1).to(torch.uint8)


def _scatter(g: Tensor, places: Tensor, plane: Pair, k: int) -> Tensor:
    """Channels last in memory; what no window covers gets no gradient."""
    (h, w), (b, c, oh, ow) = plane, g.shape
    if operators.usable(g):
        gradient: Tensor = operators.max_pool_gradient(g, places, h, w, k).permute(0, 3, 1, 2)
        return gradient
    slope = g.permute(0, 2, 3, 1).reshape(b, oh, 1, ow, 1, c)
    scattered = torch.where(_is_argmax(places, k), slope, 0.0).reshape(b, oh * k, ow * k, c).permute(0, 3, 1, 2)
    return F.pad(scattered, (0, w - ow * k, 0, h - oh * k)) if (h, w) != (oh * k, ow * k) else scattered


def _gather(x: Tensor, places: Tensor, k: int) -> Tensor:
    """The transpose of `_scatter`: what stands at the places."""
    b, oh, ow, c = places.shape
    windows = x[..., : oh * k, : ow * k].permute(0, 2, 3, 1).reshape(b, oh, k, ow, k, c)
    return torch.where(_is_argmax(places, k), windows, 0.0).sum((2, 4)).permute(0, 3, 1, 2)


def _is_argmax(places: Tensor, k: int) -> Tensor:
    """Is this the place of its window's largest? (N, oh, k, ow, k, channels)"""
    b, oh, ow, c = places.shape
    own = torch.arange(k * k, device=places.device, dtype=torch.uint8).reshape(k, 1, k, 1)
    return places.reshape(b, oh, 1, ow, 1, c) == own


# Whoever differentiates outside of vmap, as attacks by optimisation do, finds operators and not the rules above.


def _keep_places(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, ctx.size = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])
    ctx.plane = tuple(x.shape[-2:])


def _pool_backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None]:
    (places,) = ctx.saved_tensors
    return _scatter(gradient.permute(0, 3, 1, 2), places, ctx.plane, ctx.size), None


def _keep_window(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, places, _, _, ctx.size = inputs
    ctx.save_for_backward(places)


def _pool_gradient_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    (places,) = ctx.saved_tensors
    return _gather(gradient.permute(0, 3, 1, 2), places, ctx.size), None, None, None, None


operators.max_pool.register_autograd(_pool_backward, setup_context=_keep_places)
operators.max_pool_gradient.register_autograd(_pool_gradient_backward, setup_context=_keep_window)
