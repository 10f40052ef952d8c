"""Triton kernels: one time step of an LSTM for all clients, forwards and backwards, with its product or without.

Only `recurrent_steps` imports this, and only where Triton is there. A program has a tile of rows and hidden units of
one client. Weights of many clients are as large as a GPU's cache: every other step takes clients in reverse order, so
that those which were read last are read first.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    """tanh(x) = 1 - 2 / (exp(2x) + 1), which loses the digits of small numbers: these by their series."""
    square = x * x
    small = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0)))
    return tl.where(square < 0.01, small, 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))


@triton.jit
def _read(at, mask):
    return tl.load(at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def _product(x, at, inside, total, PRECISION: tl.constexpr):
    return tl.dot(x, tl.load(at, mask=inside, other=0.0), total, input_precision=PRECISION)


@triton.jit
def _place(t, clients, steps, rows, H: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr):
    """This program's client, rows, hidden units, which of both there are, and its rows' places in (C, T, B)."""
    client = tl.program_id(2)
    client = tl.where(t % 2 == 1, clients - 1 - client, client).to(tl.int64)
    b = tl.program_id(1) * BM + tl.arange(0, BM)
    j = tl.program_id(0) * BH + tl.arange(0, BH)
    return client, b, j, (b < rows)[:, None] & (j < H)[None, :], (client * steps + t) * rows + b


@triton.jit(do_not_specialize=["t", "clients", "steps", "rows"])
def cell(
    gates, bias, product, w, wc, real, h, activated, cells, t, clients, steps, rows,
    H: tl.constexpr, MASKED: tl.constexpr, FUSED: tl.constexpr,
    BM: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """h_t and c_t (C, T, B, H) from h_{t-1} and c_{t-1}, and what the gates i, f, g, o became (C, T, B, 4H)."""
    client, b, j, here, row = _place(t, clients, steps, rows, H, BM, BH)
    i = tl.zeros((BM, BH), tl.float32)
    f = tl.zeros((BM, BH), tl.float32)
    g = tl.zeros((BM, BH), tl.float32)
    o = tl.zeros((BM, BH), tl.float32)
    before = here & (t > 0)
    if FUSED:
        at = w + client * wc + j[None, :] * H
        for start in range(0, H, BK):
            k = start + tl.arange(0, BK)
            inside = (k < H)[:, None] & (j < H)[None, :]
            there = (b < rows)[:, None] & (k < H)[None, :] & (t > 0)
            state = tl.load(h + (row - rows)[:, None] * H + k[None, :], mask=there, other=0.0)
            i = _product(state, at + k[:, None], inside, i, PRECISION)
            f = _product(state, at + H * H + k[:, None], inside, f, PRECISION)
            g = _product(state, at + 2 * H * H + k[:, None], inside, g, PRECISION)
            o = _product(state, at + 3 * H * H + k[:, None], inside, o, PRECISION)
    else:
        at = product + (client * rows + b)[:, None] * (4 * H) + j[None, :]
        i += _read(at, before)
        f += _read(at + H, before)
        g += _read(at + 2 * H, before)
        o += _read(at + 3 * H, before)
    at = bias + client * (4 * H) + j
    place = row[:, None] * (4 * H) + j[None, :]
    i += _read(at, j < H)[None, :] + _read(gates + place, here)
    f += _read(at + H, j < H)[None, :] + _read(gates + place + H, here)
    g += _read(at + 2 * H, j < H)[None, :] + _read(gates + place + 2 * H, here)
    o += _read(at + 3 * H, j < H)[None, :] + _read(gates + place + 3 * H, here)
    i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), _tanh(g), tl.sigmoid(o)
    unit = row[:, None] * H + j[None, :]
    last = _read(cells + (unit - rows * H), before)
    c = f * last + i * g
    new = o * _tanh(c)
    if MASKED:
        keep = (tl.load(real + row, mask=b < rows, other=0) != 0)[:, None]
        c = tl.where(keep, c, last)
        new = tl.where(keep, new, _read(h + (unit - rows * H), before))
    kind = h.dtype.element_ty
    tl.store(activated + place, i.to(kind), mask=here)
    tl.store(activated + place + H, f.to(kind), mask=here)
    tl.store(activated + place + 2 * H, g.to(kind), mask=here)
    tl.store(activated + place + 3 * H, o.to(kind), mask=here)
    tl.store(cells + unit, c.to(kind), mask=here)
    tl.store(h + unit, new.to(kind), mask=here)


@triton.jit(do_not_specialize=["t", "clients", "steps", "rows"])
def cell_gradient(
    by_h, sc, st, sb, sh, product, w, wc, real, activated, cells, by_c, held, out, t, clients, steps, rows,
    H: tl.constexpr, MASKED: tl.constexpr, FUSED: tl.constexpr,
    BM: tl.constexpr, BH: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out_t, the gradient by gates_t, from out_{t+1} and that by h_t; `by_c` (C, B, H) goes from c_t to c_{t-1}."""
    client, b, j, here, row = _place(t, clients, steps, rows, H, BM, BH)
    later = t + 1 < steps
    spot = client * sc + t.to(tl.int64) * st + b.to(tl.int64)[:, None] * sb + j[None, :] * sh
    by_state = _read(by_h + spot, here)
    if FUSED:
        at = w + client * wc + j[None, :]
        for start in range(0, 4 * H, BK):
            k = start + tl.arange(0, BK)
            there = (b < rows)[:, None] & (k < 4 * H)[None, :] & later
            slope = tl.load(out + (row + rows)[:, None] * (4 * H) + k[None, :], mask=there, other=0.0)
            inside = (k < 4 * H)[:, None] & (j < H)[None, :]
            weight = tl.load(at + k[:, None] * H, mask=inside, other=0.0)
            by_state = tl.dot(slope, weight, by_state, input_precision=PRECISION)
    else:
        by_state += _read(product + (client * rows + b)[:, None] * H + j[None, :], here & later)
    own = (client * rows + b)[:, None] * H + j[None, :]
    place, unit = row[:, None] * (4 * H) + j[None, :], row[:, None] * H + j[None, :]
    i = _read(activated + place, here)
    f = _read(activated + place + H, here)
    g = _read(activated + place + 2 * H, here)
    o = _read(activated + place + 3 * H, here)
    last = _read(cells + (unit - rows * H), here & (t > 0))
    tanh = _tanh(_read(cells + unit, here))
    future = _read(by_c + own, here)
    if MASKED:
        by_state += _read(held + own, here)
    total = future + by_state * o * (1.0 - tanh * tanh)
    by_i, by_f, by_g = total * g * i * (1.0 - i), total * last * f * (1.0 - f), total * i * (1.0 - g * g)
    by_o, passed = by_state * tanh * o * (1.0 - o), total * f
    if MASKED:
        keep = (tl.load(real + row, mask=b < rows, other=0) != 0)[:, None]
        by_i, by_f = tl.where(keep, by_i, 0.0), tl.where(keep, by_f, 0.0)
        by_g, by_o = tl.where(keep, by_g, 0.0), tl.where(keep, by_o, 0.0)
        passed = tl.where(keep, passed, future)
        tl.store(held + own, tl.where(keep, 0.0, by_state), mask=here)
    kind = out.dtype.element_ty
    tl.store(by_c + own, passed, mask=here)
    tl.store(out + place, by_i.to(kind), mask=here)
    tl.store(out + place + H, by_f.to(kind), mask=here)
    tl.store(out + place + 2 * H, by_g.to(kind), mask=here)
    tl.store(out + place + 3 * H, by_o.to(kind), mask=here)
