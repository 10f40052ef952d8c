"""The recurrent part of an LSTM, all clients and all time steps in one operation, and its gradient in another.

Unrolled, a layer is as many cells as there are steps, and every cell adds up a gradient as large as its weights. Here
the backward pass gives the gradients by all gates, and the gradient by the weights is one product over all steps.
Axes: C clients, T steps, B rows, H hidden units; gates in the order i, f, g, o.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import vjp

from atoll.tasks.kernels import recurrent_steps


def recurrence(gates: Tensor, bias: Tensor, weight_hh: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """h (T, B, H) and the last c (B, H) from gates = W_ih x (T, B, 4H), a bias (4H) and weight_hh (4H, H).

    i, f, g, o = gates_t + bias + W_hh h_{t-1};  c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g);
    h_t = sigmoid(o) tanh(c_t), from zeros; where `real` (T, B) is false, h and c stay what they were.
    """
    one = [None if x is None else x.unsqueeze(0) for x in (gates, bias, weight_hh, real)]
    h, last, _, _ = _apply(_States, *one)
    return h.squeeze(0), last.squeeze(0)  # not [0], whose gradient is a copy


def unrolled(
    gates: Tensor,
    bias: Tensor,
    weight_hh: Tensor,
    real: Tensor | None = None,
    start: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """The same, cell by cell in plain operations, clients in front or not; from any `start` (h, c)."""
    steps = (gates + bias[..., None, None, :]).unbind(-3)
    masks = [None] * len(steps) if real is None else real.unsqueeze(-1).unbind(-3)
    zero = steps[0][..., : weight_hh.shape[-1]].detach() * 0
    h, c = (zero, zero) if start is None else start
    out = []
    for step, mask in zip(steps, masks, strict=True):
        i, f, g, o = (step + h @ weight_hh.mT).chunk(4, -1)
        new_c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        new_h = torch.sigmoid(o) * torch.tanh(new_c)
        h = new_h if mask is None else torch.where(mask, new_h, h)
        c = new_c if mask is None else torch.where(mask, new_c, c)
        out.append(h)
    return torch.stack(out, -3), c


class _States(torch.autograd.Function):
    """(C, T, B, 4H), (C, 4H), (C, 4H, H), (C, T, B) to h, the last c, and what the gradient needs of every cell."""

    @staticmethod
    def forward(gates: Tensor, bias: Tensor, w: Tensor, real: Tensor | None) -> tuple[Tensor, ...]:
        h, activated, cells = recurrent_steps.states(gates, bias, w, real)
        return h, cells[:, -1].clone(), activated, cells

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        h, _, activated, cells = output
        ctx.mark_non_differentiable(activated, cells)
        ctx.save_for_backward(*inputs, h, activated, cells)

    @staticmethod
    def backward(ctx: Any, by_h: Tensor, by_last: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        gates, bias, w, real, h, activated, cells = ctx.saved_tensors
        slope = _apply(_Gradient, by_h, by_last, gates, bias, w, real, activated, cells)
        by_bias = slope.sum((1, 2)) if ctx.needs_input_grad[1] else None
        by_w = slope[:, 1:].flatten(1, 2).mT @ h[:, :-1].flatten(1, 2) if ctx.needs_input_grad[2] else None
        return slope, by_bias, by_w, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        return _vmapped(_States, info.batch_size, in_dims, args, (2, None, None, 2), (2, 1, 2, 2))


class _Gradient(torch.autograd.Function):
    """The gradient by the gates. A derivative of this one is that of the unrolled cells: right, and slow."""

    @staticmethod
    def forward(
        by_h: Tensor,
        by_last: Tensor,
        gates: Tensor,
        bias: Tensor,
        w: Tensor,
        real: Tensor | None,
        activated: Tensor,
        cells: Tensor,
    ) -> Tensor:
        slope: Tensor = recurrent_steps.gradient(by_h, by_last, activated, cells, w, real)
        return slope

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:6])

    @staticmethod
    def backward(ctx: Any, by_slope: Tensor) -> tuple[Tensor | None, ...]:
        by_h, by_last, gates, bias, w, real = ctx.saved_tensors

        def slope(by_h: Tensor, by_last: Tensor, gates: Tensor, bias: Tensor, w: Tensor) -> Tensor:
            by_gates: Tensor = vjp(lambda x: unrolled(x, bias, w, real), gates)[1]((by_h, by_last))[0]
            return by_gates

        return *vjp(slope, by_h, by_last, gates, bias, w)[1](by_slope), None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        return _vmapped(_Gradient, info.batch_size, in_dims, args, (2, 1, 2, None, None, 2, 2, 2), 2)


def _vmapped(
    f: type[torch.autograd.Function],
    n: int,
    in_dims: tuple[int | None, ...],
    args: tuple[Tensor | None, ...],
    rows: tuple[int | None, ...],
    out_rows: Any,
) -> Any:
    """One more axis: as more clients, or as more rows (at axes `rows`) where it has no weights of its own."""
    shared = all(d is None for d, row in zip(in_dims, rows, strict=True) if row is None)
    axes = rows if shared else (0,) * len(rows)
    given = [
        x if x is None or axis is None else _merged(x, d, n, axis)
        for x, d, axis in zip(args, in_dims, axes, strict=True)
    ]
    if isinstance(out_rows, int):
        axis = out_rows if shared else 0
        return _apply(f, *given).unflatten(axis, (n, -1)), axis
    out_axes = out_rows if shared else (0,) * len(out_rows)
    out = _apply(f, *given)
    return tuple(x.unflatten(axis, (n, -1)) for x, axis in zip(out, out_axes, strict=True)), out_axes


def _merged(x: Tensor, dim: int | None, n: int, axis: int) -> Tensor:
    """The axis of vmap (the same for all where there is none) made one with another."""
    whole = x.unsqueeze(axis).expand(*x.shape[:axis], n, *x.shape[axis:]) if dim is None else x.movedim(dim, axis)
    return whole.flatten(axis, axis + 1)


def _apply(f: type[torch.autograd.Function], *args: Any) -> Any:
    return f.apply(*args)  # type: ignore[no-untyped-call]
