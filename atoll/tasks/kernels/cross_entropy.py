"""Cross-entropy over the last axis: one pass over the logits, and one more for their gradient.

What plain operations write down on the way (log-probabilities, a one-hot gradient and its zeros) is as large as the
logits, four times over; of a language model that is most of a step. Here a number per row is kept.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vjp

from atoll.kernel_launch import launch
from atoll.tasks.kernels import operators
from atoll.tasks.kernels.client_axis import apply, fused, in_front

DEVICES = {"cuda"}
SHORT = 1024  # classes of rows that share a program
TILE, LONG, WARPS = 2048, 1024, 4  # numbers of a program's tile; columns of a long row that are read at a time


def cross_entropy_rows(logits: Tensor, y: Tensor) -> Tensor:
    """-log softmax(logits)[y]; torch's own spends as many kernels again on an ignore_index that is not needed here."""
    if fused(logits, DEVICES) and y.dtype == torch.int64 and y.shape == logits.shape[:-1]:
        losses: Tensor = apply(_CrossEntropy, logits, y)[0]
        return losses
    return -F.log_softmax(logits, -1).gather(-1, y[..., None]).squeeze(-1)


class _CrossEntropy(torch.autograd.Function):
    """The losses, and the logarithms of the sums of exp."""

    @staticmethod
    def forward(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if operators.usable(logits):
            losses, lse = _rows(logits, y)
            return losses, lse
        lse = torch.logsumexp(logits, -1)
        return lse - logits.gather(-1, y[..., None]).squeeze(-1), lse

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor, None]:
        return apply(_Gradient, *ctx.saved_tensors, g), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Tensor) -> Any:
        stack = (in_front(x, dim, info.batch_size) for x, dim in zip(given, in_dims, strict=True))
        return apply(_CrossEntropy, *stack), (0, 0)


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(logits: Tensor, y: Tensor, lse: Tensor, g: Tensor) -> Tensor:
        if operators.usable(logits):
            gradient: Tensor = _rows_gradient(logits, y, lse, g)
            return gradient
        return _plain_gradient(logits, y, g)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        logits, y, _, g = inputs
        ctx.save_for_backward(logits, y, g)

    @staticmethod
    def backward(ctx: Any, gg: Tensor) -> tuple[Tensor | None, ...]:
        logits, y, g = ctx.saved_tensors
        by_logits, by_g = vjp(lambda logits, g: _plain_gradient(logits, y, g), logits, g)[1](gg)
        return by_logits, None, None, by_g

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Tensor) -> Any:
        stack = (in_front(x, dim, info.batch_size) for x, dim in zip(given, in_dims, strict=True))
        return apply(_Gradient, *stack), 0


def _plain_gradient(logits: Tensor, y: Tensor, g: Tensor) -> Tensor:
    slope = g[..., None]
    return torch.scatter_add(logits.softmax(-1) * slope, -1, y[..., None], -slope)


@torch.library.custom_op("atoll::cross_entropy", mutates_args=())
def _rows(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """By the kernel."""
    logits, y, n, classes = logits.contiguous(), y.contiguous(), y.numel(), logits.shape[-1]
    losses, lse = _empty_rows(logits, y)
    if not n:
        return losses, lse
    if classes <= SHORT:
        wide, tall = _tile(classes)
        launch(_kernels().short_rows, (-(-n // tall),))(
            logits, y, losses, lse, n, V=classes, BR=tall, BV=wide, num_warps=WARPS
        )
    else:
        launch(_kernels().long_row, (n,))(logits, y, losses, lse, n, V=classes, BV=LONG, num_warps=WARPS)
    return losses, lse


@_rows.register_fake
def _(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return _empty_rows(logits, y)


def _empty_rows(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    losses = torch.empty(y.shape, dtype=logits.dtype, device=y.device)
    return losses, torch.empty(y.shape, dtype=torch.float32, device=y.device)


@torch.library.custom_op("atoll::cross_entropy_gradient", mutates_args=())
def _rows_gradient(logits: Tensor, y: Tensor, lse: Tensor, g: Tensor) -> Tensor:
    """By the kernel."""
    out = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    n, classes = y.numel(), logits.shape[-1]
    if not n:
        return out
    wide, tall = _tile(classes)
    launch(_kernels().gradient, (-(-n // tall), -(-classes // wide)))(
        logits.contiguous(), y.contiguous(), lse.contiguous(), g.contiguous(), out, n,
        V=classes, BR=tall, BV=wide, num_warps=WARPS,
    )  # fmt: skip
    return out


@_rows_gradient.register_fake
def _(logits: Tensor, y: Tensor, lse: Tensor, g: Tensor) -> Tensor:
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


def _tile(classes: int) -> tuple[int, int]:
    """Columns and rows of a program."""
    wide = min(TILE, max(2, 1 << (classes - 1).bit_length()))
    return wide, min(128, TILE // wide)


def _kernels() -> Any:
    from atoll.tasks.kernels import cross_entropy_kernels

    return cross_entropy_kernels
