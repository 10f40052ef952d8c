"""All time steps of an LSTM, forwards and backwards, as two torch operators: graphs and compilers see one node each.

On a GPU a Triton kernel per step; elsewhere plain operations that write where their numbers stay.
"""

from typing import Any

import torch
from torch import Tensor

from atoll.kernel_launch import launch
from atoll.tasks.kernels.operators import tile_size, usable
from atoll.tasks.kernels.wide_operators import precision

FUSED = True  # one kernel per step for the product and the cell; else torch's product and a kernel for the cell
FORWARD, BACKWARD = (32, 64, 4, 2), (32, 64, 4, 4)  # hidden units, depth, warps and stages of a tile that multiplies
_CELL = (64, 16, 4, 1)  # the same of one that does not
_ROWS = 32  # at most, of a tile


@torch.library.custom_op("atoll::lstm_states", mutates_args=())
def states(gates: Tensor, bias: Tensor, w: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(C, T, B, 4H), (C, 4H), (C, 4H, H), (C, T, B) to h (C, T, B, H), the gates after their functions, and c."""
    h, activated, cells = _empty(gates)
    if usable(gates):
        _states_by_kernels(gates.contiguous(), bias.contiguous(), _rowwise(w), real, h, activated, cells)
    else:
        _plain_states(gates + bias[:, None, None], w, real, h, activated, cells)
    return h, activated, cells


@states.register_fake
def _(gates: Tensor, bias: Tensor, w: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(gates)


@torch.library.custom_op("atoll::lstm_gradient", mutates_args=())
def gradient(by_h: Tensor, by_last: Tensor, activated: Tensor, cells: Tensor, w: Tensor, real: Tensor | None) -> Tensor:
    """The gradient by the gates (C, T, B, 4H), from those by h (C, T, B, H) and by the last c (C, B, H)."""
    out = activated.new_empty(activated.shape)
    if usable(activated):
        _gradient_by_kernels(by_h, by_last, activated.contiguous(), cells.contiguous(), _rowwise(w), real, out)
    else:
        _plain_gradient(by_h, by_last, activated, cells, w, real, out)
    return out


@gradient.register_fake
def _(by_h: Tensor, by_last: Tensor, activated: Tensor, cells: Tensor, w: Tensor, real: Tensor | None) -> Tensor:
    return activated.new_empty(activated.shape)


def _empty(gates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    shape = (*gates.shape[:3], gates.shape[3] // 4)
    return gates.new_empty(shape), gates.new_empty(gates.shape), gates.new_empty(shape)


def _plain_states(gates: Tensor, w: Tensor, real: Tensor | None, h: Tensor, activated: Tensor, cells: Tensor) -> None:
    """What `recurrence` says, into the last three; the bias is in the gates."""
    width = w.shape[2]
    for t in range(gates.shape[1]):
        given = gates[:, t] if t == 0 else torch.baddbmm(gates[:, t], h[:, t - 1], w.mT)
        act = torch.sigmoid(given)
        torch.tanh(given[..., 2 * width : 3 * width], out=act[..., 2 * width : 3 * width])
        i, f, g, o = act.chunk(4, -1)
        c = i * g if t == 0 else torch.addcmul(i * g, f, cells[:, t - 1])
        new = o * torch.tanh(c)
        if real is not None:
            keep = real[:, t, :, None]
            c = torch.where(keep, c, cells[:, t - 1] if t else 0.0)
            new = torch.where(keep, new, h[:, t - 1] if t else 0.0)
        activated[:, t], cells[:, t], h[:, t] = act, c, new


def _plain_gradient(
    by_h: Tensor, by_last: Tensor, activated: Tensor, cells: Tensor, w: Tensor, real: Tensor | None, out: Tensor
) -> None:
    """Backwards. What does not depend on a later step is made for all steps at once, and lies in `out` till then."""
    width = w.shape[2]
    i, f, g, o = activated.chunk(4, -1)
    before = torch.cat([torch.zeros_like(cells[:, :1]), cells[:, :-1]], 1)
    tanh = torch.tanh(cells)
    back = o * (1 - tanh * tanh)
    torch.mul(activated, 1 - activated, out=out)
    parts = out.chunk(4, -1)
    parts[0].mul_(g)
    parts[1].mul_(before)
    torch.mul(i, 1 - g * g, out=parts[2])
    parts[3].mul_(tanh)
    if real is not None:
        keep = real.unsqueeze(-1)
        out.mul_(keep)
        back, f = back * keep, torch.where(keep, f, 1.0)
    inner, outer = out[..., : 3 * width].unflatten(-1, (3, width)), out[..., 3 * width :]  # type: ignore[no-untyped-call]
    by_c, held = by_last, None
    for t in range(out.shape[1] - 1, -1, -1):
        by_state = by_h[:, t] if t == out.shape[1] - 1 else torch.baddbmm(by_h[:, t], out[:, t + 1], w)
        by_state = by_state if held is None else by_state + held
        by_c = torch.addcmul(by_c, by_state, back[:, t])
        inner[:, t].mul_(by_c.unsqueeze(-2))
        outer[:, t].mul_(by_state)
        by_c = by_c * f[:, t]
        held = None if real is None else torch.where(real[:, t, :, None], 0.0, by_state)


def _states_by_kernels(
    gates: Tensor, bias: Tensor, w: Tensor, real: Tensor | None, h: Tensor, activated: Tensor, cells: Tensor
) -> None:
    clients, steps, rows, width = h.shape
    fused, (grid, tile) = _is_fused(gates), _tiles(h, FORWARD)
    product = gates if fused else gates.new_empty((clients, rows, 4 * width))
    mask = gates if real is None else real.contiguous().view(torch.uint8)
    for t in range(steps):
        if not fused and t > 0:
            torch.bmm(h[:, t - 1], w.mT, out=product)
        launch(_kernels().cell, grid)(
            gates, bias, product, w, w.stride(0), mask, h, activated, cells, t, clients, steps, rows,
            H=width, MASKED=real is not None, FUSED=fused, **tile,
        )  # fmt: skip


def _gradient_by_kernels(
    by_h: Tensor, by_last: Tensor, activated: Tensor, cells: Tensor, w: Tensor, real: Tensor | None, out: Tensor
) -> None:
    clients, steps, rows, width = cells.shape
    fused, (grid, tile) = _is_fused(cells), _tiles(cells, BACKWARD)
    product = cells if fused else cells.new_empty((clients, rows, width))
    by_c = by_last.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    held = by_c if real is None else torch.zeros_like(by_c)
    mask = cells if real is None else real.contiguous().view(torch.uint8)
    for t in range(steps - 1, -1, -1):
        if not fused and t + 1 < steps:
            torch.bmm(out[:, t + 1], w, out=product)
        launch(_kernels().cell_gradient, grid)(
            by_h, *by_h.stride(), product, w, w.stride(0), mask, activated, cells, by_c, held, out,
            t, clients, steps, rows, H=width, MASKED=real is not None, FUSED=fused, **tile,
        )  # fmt: skip


def _kernels() -> Any:
    from atoll.tasks.kernels import recurrent_kernels

    return recurrent_kernels


def _is_fused(x: Tensor) -> bool:
    """Does the kernel multiply? Whole float32 numbers have no tensor cores: torch's product is the faster one."""
    return FUSED and (x.dtype is not torch.float32 or precision() != "ieee")


def _tiles(h: Tensor, multiplying: tuple[int, int, int, int]) -> tuple[tuple[int, int, int], dict[str, Any]]:
    """The grid (hidden units, rows, clients), and the sizes of a tile."""
    clients, _, rows, width = h.shape
    units, depth, warps, stages = multiplying if _is_fused(h) else _CELL
    bm, bh = tile_size(rows, _ROWS), tile_size(width, units)
    tile = {"BM": bm, "BH": bh, "BK": tile_size(width, depth), "PRECISION": precision()}
    return (-(-width // bh), -(-rows // bm), clients), {**tile, "num_warps": warps, "num_stages": stages}


def _rowwise(w: Tensor) -> Tensor:
    """Rows of hidden units next to each other; weights that clients share stay one copy."""
    return w if w.stride()[1:] == (w.shape[2], 1) else w.contiguous()
