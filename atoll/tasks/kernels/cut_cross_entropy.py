"""Cross-entropy of a linear layer's scores that are never written down ("cut cross-entropy", Wijmans et al., 2025).

Of a language model the scores are larger than all else in a step, and were read or written six times. Here tiles of
them are made in registers, once for the losses and their gradient by x, and once more for that by the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vjp

from atoll.kernel_launch import launch
from atoll.tasks.kernels import operators
from atoll.tasks.kernels.client_axis import apply, fused, in_front, stacked
from atoll.tasks.kernels.cross_entropy import cross_entropy_rows
from atoll.tasks.kernels.wide_operators import precision

DEVICES = {"cuda"}
MANY, WIDEST = 4096, 128  # classes that are worth it; numbers of a row that fit in one program
ROWS, CLASSES = 64, 128  # of a tile of scores, which share a power of two each
STAGES, WARPS = 3, 4  # two stages where rows are wider than 96: tiles of 100 kB are what smaller GPUs have
WIDE, DEEP, STRONG = 64, 3, 4  # of the gradient by weights: classes of a program, stages and warps


@dataclass(frozen=True)
class LinearScores:
    """The scores x weight^T of (..., D) and (V, D), of which only losses will be taken."""

    x: Tensor
    weight: Tensor


def scores_cross_entropy(scores: Tensor | LinearScores, y: Tensor) -> Tensor:
    """-log softmax(scores)[y]; of linear scores in float32 at least."""
    if not isinstance(scores, LinearScores):
        return cross_entropy_rows(scores, y)
    x = scores.x.reshape(-1, scores.x.shape[-1])
    losses: Tensor = apply(_CutCrossEntropy, x, scores.weight, y.reshape(-1), 0)[0]
    return losses.reshape(y.shape)


def takes_linear_scores(x: Tensor, weight: Tensor) -> bool:
    """Are losses of x (..., D) and weights (V, D) quicker where no scores are written?

    Where weights are frozen they are one for all clients, whose scores are one product. Products of all 23 bits take
    longer than the memory that they would save.
    """
    fits = weight.dim() == 2 and x.shape[-1] <= WIDEST and MANY <= len(weight) < 1 << 23
    rough = x.dtype in (torch.bfloat16, torch.float16) or precision() == "tf32"
    return fits and rough and weight.requires_grad and weight.dtype == x.dtype and fused(x, DEVICES)


class _CutCrossEntropy(torch.autograd.Function):
    """x (lead..., R, D), weight (lead..., V, D), y (lead..., R): the losses, and what their gradient is made of."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, y: Tensor, lead: int) -> tuple[Tensor, ...]:
        if operators.usable(x):
            rows = _by_kernel(*(stacked(each, lead).contiguous() for each in (x, weight, y)))
            return tuple(each.reshape(*y.shape[:lead], *each.shape[1:]) for each in rows)
        return _plain(x, weight, y), *(x.new_empty((*y.shape[:lead], 0)) for _ in range(7))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *given, ctx.lead = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*given, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return *apply(_Gradient, g, *ctx.saved_tensors, ctx.lead), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> Any:
        *tensors, lead = given
        stack = [in_front(x, dim, info.batch_size) for x, dim in zip(tensors, in_dims, strict=False)]
        return apply(_CutCrossEntropy, *stack, lead + 1), (0,) * 8


class _Gradient(torch.autograd.Function):
    """By x and by the weights."""

    @staticmethod
    def forward(g: Tensor, x: Tensor, weight: Tensor, y: Tensor, *kept_and_lead: Any) -> tuple[Tensor, Tensor]:
        *kept, lead = kept_and_lead
        if operators.usable(x):
            slopes, *rest = kept
            given = [stacked(each, lead).contiguous() for each in (g, y, *rest)]
            by_weight = _weight_gradient(*given, x.shape[-1], weight.dtype)
            return (g[..., None] * slopes).to(x.dtype), by_weight.reshape(weight.shape)
        return _plain_gradient(g, x, weight, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:4])

    @staticmethod
    def backward(ctx: Any, by_x: Tensor, by_weight: Tensor) -> tuple[Tensor | None, ...]:
        g, x, weight, y = ctx.saved_tensors
        back = vjp(lambda g, x, weight: _plain_gradient(g, x, weight, y), g, x, weight)[1]
        return *back((by_x, by_weight)), *[None] * 9

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> Any:
        *tensors, lead = given
        stack = [in_front(x, dim, info.batch_size) for x, dim in zip(tensors, in_dims, strict=False)]
        return apply(_Gradient, *stack, lead + 1), (0, 0)


def _plain(x: Tensor, weight: Tensor, y: Tensor) -> Tensor:
    scores = x @ weight.transpose(-2, -1)
    scores = scores.float() if scores.element_size() == 2 else scores
    return -F.log_softmax(scores, -1).gather(-1, y[..., None]).squeeze(-1)


def _plain_gradient(g: Tensor, x: Tensor, weight: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    by_x, by_weight = vjp(lambda x, weight: _plain(x, weight, y), x, weight)[1](g)
    return by_x, by_weight


@torch.library.custom_op("atoll::cut_cross_entropy", mutates_args=())
def _by_kernel(x: Tensor, weight: Tensor, y: Tensor) -> list[Tensor]:
    """Of (C, R, D), (C, V, D) and (C, R): losses, slopes by x, halves and scales of both, log-sums, other chances."""
    out = _empty_rows(x, weight, y)
    losses, slopes, x_halves, x_scales, w_halves, w_scales, lse, missed = out
    if not y.numel():
        return out
    _round(x, x_halves, x_scales, ROWS)
    _round(weight, w_halves, w_scales, CLASSES)
    (clients, rows), parts = y.shape, x_scales.shape[1]
    launch(_kernels().losses, (clients * parts,))(
        x_halves, x_scales, w_halves, w_scales, weight, y, losses, lse, missed, slopes, parts,
        R=rows, V=weight.shape[1], **_widths(x.shape[-1]), BR=ROWS, BV=CLASSES,
        num_warps=WARPS, num_stages=STAGES if x_halves.shape[-1] <= 96 else 2,
    )  # fmt: skip
    return out


@_by_kernel.register_fake
def _(x: Tensor, weight: Tensor, y: Tensor) -> list[Tensor]:
    return _empty_rows(x, weight, y)


def _empty_rows(x: Tensor, weight: Tensor, y: Tensor) -> list[Tensor]:
    def empty(shape: tuple[int, ...], kind: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=kind, device=y.device)

    wide, rounded = _widths(x.shape[-1]), []
    for each, tile in ((x, ROWS), (weight, CLASSES)):
        clients, rows = each.shape[:2]
        rounded += [empty((clients, rows, wide["P0"] + wide["P1"]), torch.float16), empty((clients, -(-rows // tile)))]
    return [empty(y.shape), empty(x.shape), *rounded, empty(y.shape), empty(y.shape)]


def _round(x: Tensor, out: Tensor, scales: Tensor, tile: int) -> None:
    parts, padded = scales.shape[1], out.shape[-1]
    launch(_kernels().halves, (scales.numel(),))(
        x, out, scales, parts, R=x.shape[1], D=x.shape[-1], P=padded, BR=tile, BP=1 << (padded - 1).bit_length(),
        num_warps=tile // 16,
    )  # fmt: skip


@torch.library.custom_op("atoll::cut_cross_entropy_weight_gradient", mutates_args=())
def _weight_gradient(
    g: Tensor, y: Tensor, x: Tensor, x_scales: Tensor, w: Tensor, w_scales: Tensor, lse: Tensor, missed: Tensor,
    width: int, kind: torch.dtype,
) -> Tensor:  # fmt: skip
    """(C, V, D) of (C, R), and of what the losses kept."""
    (clients, rows), classes = y.shape, w.shape[1]
    out = torch.empty((clients, classes, width), dtype=kind, device=w.device)
    if not y.numel():
        return out.zero_()
    steepest, parts, scales = torch.linalg.vector_norm(g, torch.inf, -1), -(-classes // WIDE), x_scales.shape[1]
    launch(_kernels().weight_gradient, (clients * parts,))(
        g, steepest, x, x_scales, w, w_scales, lse, missed, y, out, parts, R=rows, V=classes, **_widths(width),
        BR=ROWS, BV=WIDE, EACH=CLASSES, SCALES=1 << (scales - 1).bit_length(), num_warps=STRONG, num_stages=DEEP,
    )  # fmt: skip
    return out


@_weight_gradient.register_fake
def _(
    g: Tensor, y: Tensor, x: Tensor, x_scales: Tensor, w: Tensor, w_scales: Tensor, lse: Tensor, missed: Tensor,
    width: int, kind: torch.dtype,
) -> Tensor:  # fmt: skip
    return torch.empty((*w.shape[:2], width), dtype=kind, device=w.device)


def _widths(width: int) -> dict[str, int]:
    """The width, and two tiles that cover it: powers of two, as Triton has them, of which 96 needs no more than 96."""
    below = max(16, 1 << (width.bit_length() - 1))
    above = max(0, width - below)
    return {"D": width, "P0": below, "P1": max(16, 1 << (above - 1).bit_length()) if above else 0}


def _kernels() -> Any:
    from atoll.tasks.kernels import cut_cross_entropy_kernels

    return cut_cross_entropy_kernels
