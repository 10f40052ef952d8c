"""An embedding whose weights are a model's last layer, too: both gradients are one tensor from the start.

Else that of the embedding is another as large as the weights: filled with zeros, written where there are tokens, which
are sorted for it, and read to be added.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atoll.kernel_launch import launch
from atoll.tasks.kernels import operators
from atoll.tasks.kernels.client_axis import apply, fused, in_front, stacked

DEVICES = {"cuda"}
LONGEST, WIDEST = 16_384, 1024  # tokens of a batch, each of which looks for its like; numbers of a row
BR, WARPS = 32, 1  # tokens that are looked at together


def takes_tied_embedding(tokens: Tensor, weight: Tensor) -> bool:
    """Do gradients by these weights go through one kernel?"""
    fits = weight.requires_grad and tokens.numel() <= LONGEST and weight.shape[-1] <= WIDEST
    return fits and tokens.dtype == torch.int64 and fused(weight, DEVICES)


def tied_embedding(tokens: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """F.embedding(tokens, weight), and the weights for the last layer."""
    rows, tied = apply(_TiedEmbedding, tokens.reshape(-1), weight, 0)
    return rows.reshape(*tokens.shape, -1), tied


class _TiedEmbedding(torch.autograd.Function):
    """tokens (lead..., R) and weight (lead..., V, D) to (lead..., R, D) and the weight."""

    @staticmethod
    def forward(tokens: Tensor, weight: Tensor, lead: int) -> tuple[Tensor, Tensor]:
        return _rows(tokens, weight, lead), weight.view_as(weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        tokens, _, ctx.lead = inputs
        ctx.save_for_backward(tokens)

    @staticmethod
    def backward(ctx: Any, by_rows: Tensor, by_weight: Tensor) -> tuple[Tensor | None, ...]:
        return None, apply(_Gradient, by_rows, by_weight, *ctx.saved_tensors, ctx.lead), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], tokens: Tensor, weight: Tensor, lead: int) -> Any:
        given = (in_front(x, dim, info.batch_size) for x, dim in zip((tokens, weight), in_dims, strict=False))
        return apply(_TiedEmbedding, *given, lead + 1), (0, 0)


class _Gradient(torch.autograd.Function):
    """by_weight[tokens[r]] + by_rows[r]."""

    @staticmethod
    def forward(by_rows: Tensor, by_weight: Tensor, tokens: Tensor, lead: int) -> Tensor:
        given = (stacked(x, lead).contiguous() for x in (by_rows, by_weight, tokens))
        sums: Tensor = (_added if operators.usable(by_weight) else _plainly_added)(*given)
        return sums.reshape(by_weight.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, tokens, ctx.lead = inputs
        ctx.save_for_backward(tokens)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = apply(_TiedEmbedding, *ctx.saved_tensors, g, ctx.lead)
        return rows, weight, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *given: Any) -> Any:
        *tensors, lead = given
        stack = [in_front(x, dim, info.batch_size) for x, dim in zip(tensors, in_dims, strict=False)]
        return apply(_Gradient, *stack, lead + 1), 0


def _rows(tokens: Tensor, weight: Tensor, lead: int) -> Tensor:
    """weight[i, ..., tokens[i, ..., r]], of weights that need not lie one after the other."""
    sizes = enumerate(weight.shape[:lead])
    places = (torch.arange(n, device=tokens.device).reshape(-1, *[1] * (lead - axis)) for axis, n in sizes)
    return weight[(*places, tokens)]


def _plainly_added(by_rows: Tensor, by_weight: Tensor, tokens: Tensor) -> Tensor:
    clients, classes = by_weight.shape[:2]
    places = (tokens + torch.arange(clients, device=tokens.device)[:, None] * classes).flatten()
    return by_weight.flatten(0, 1).index_add(0, places, by_rows.flatten(0, 1).to(by_weight.dtype))


@torch.library.custom_op("atoll::tied_embedding_gradient", mutates_args=())
def _added(by_rows: Tensor, by_weight: Tensor, tokens: Tensor) -> Tensor:
    """Rows (C, R, D) added to (C, V, D) in the order of the tokens (C, R)."""
    out, (classes, width) = by_weight.clone(), by_weight.shape[1:]
    if by_rows.numel():
        launch(_kernels().add_rows, (tokens.numel(),))(
            tokens, by_rows, out, V=classes, R=tokens.shape[1], D=width, BR=BR, BD=1 << (width - 1).bit_length(),
            num_warps=WARPS,
        )  # fmt: skip
    return out


@_added.register_fake
def _(by_rows: Tensor, by_weight: Tensor, tokens: Tensor) -> Tensor:
    return torch.empty_like(by_weight)


def _kernels() -> Any:
    from atoll.tasks.kernels import embedding_kernels

    return embedding_kernels
