"""A residual sum and its ReLU in one pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atoll.core import is_functional
from atoll.tasks.kernels import group_norm_operators, operators

DEVICES = {"cuda"}


def add_relu(x: Tensor, y: Tensor) -> Tensor:
    """torch.relu(x + y), as the end of a residual block."""
    if not is_functional() or x.device.type not in DEVICES or x.dim() != 4 or x.shape != y.shape or x.dtype != y.dtype:
        return torch.relu(x + y)
    out: Tensor = _AddRelu.apply(x, y)  # type: ignore[no-untyped-call]
    return out


class _AddRelu(torch.autograd.Function):
    """Pictures (..., channels, H, W)."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        a, b = x.movedim(-3, -1), y.movedim(-3, -1)
        if operators.usable(x) and a.is_contiguous() and b.is_contiguous():
            out: Tensor = group_norm_operators.add_relu(a, b).movedim(-1, -3)
            return out
        return torch.relu(x + y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        (out,) = ctx.saved_tensors
        slope: Tensor = torch.ops.aten.threshold_backward(g, out, 0.0)
        return slope, slope

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], x: Tensor, y: Tensor) -> Any:
        n = info.batch_size
        a, b = (
            k.expand(n, *k.shape) if dim is None else k.movedim(dim, 0)
            for k, dim in zip((x, y), in_dims, strict=True)
        )  # fmt: skip
        return _AddRelu.apply(a, b), 0  # type: ignore[no-untyped-call]
