"""Triton kernels: cross-entropy of rows of logits in one pass over them, and its gradient in another.

Only `cross_entropy` imports this, and only where Triton is there. A program has many short rows, or one long one.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _store_loss(rows, logits, targets, losses, lse, real, largest, total, V: tl.constexpr):
    y = tl.load(targets + rows, mask=real, other=0)
    inside = real & (y >= 0) & (y < V)
    own = tl.load(logits + rows.to(tl.int64) * V + y, mask=inside, other=float("nan")).to(tl.float32)
    tl.store(losses + rows, (tl.log(total) + (largest - own)).to(losses.dtype.element_ty), mask=real)
    tl.store(lse + rows, largest + tl.log(total), mask=real)


@triton.jit
def short_rows(logits, targets, losses, lse, n, V: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr):
    """log sum exp(x) - x[y] of BR rows."""
    rows, col = tl.program_id(0) * BR + tl.arange(0, BR), tl.arange(0, BV)
    real = rows < n
    at = logits + rows.to(tl.int64)[:, None] * V + col[None, :]
    x = tl.load(at, mask=real[:, None] & (col < V)[None, :], other=float("-inf")).to(tl.float32)
    largest = tl.maximum(tl.max(x, 1), -3.0e38)
    total = tl.sum(tl.exp(x - largest[:, None]), 1)
    _store_loss(rows, logits, targets, losses, lse, real, largest, total, V)


@triton.jit
def long_row(logits, targets, losses, lse, n, V: tl.constexpr, BV: tl.constexpr):
    """The same of one row: every lane keeps the largest and the sum of its own columns until the end.

    It starts from a finite number, so that two of them have a difference.
    """
    row = tl.program_id(0)
    x = logits + row.to(tl.int64) * V
    tops, sums = tl.full((BV,), -3.0e38, tl.float32), tl.zeros((BV,), tl.float32)
    for start in range(0, V, BV):
        col = start + tl.arange(0, BV)
        value = tl.load(x + col, mask=col < V, other=float("-inf")).to(tl.float32)
        above = tl.maximum(tops, value)
        sums = sums * tl.exp(tops - above) + tl.exp(value - above)
        tops = above
    largest = tl.max(tops, 0)
    total = tl.sum(sums * tl.exp(tops - largest), 0)
    rows = row + tl.arange(0, 1)
    _store_loss(rows, logits, targets, losses, lse, rows < n, largest, total, V)


@triton.jit
def gradient(logits, targets, lse, g, out, n, V: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr):
    """out[r, v] = g[r] (exp(x[r, v] - lse[r]) - [v = y[r]])."""
    rows, col = tl.program_id(0) * BR + tl.arange(0, BR), tl.program_id(1) * BV + tl.arange(0, BV)
    real = rows < n
    y = tl.load(targets + rows, mask=real, other=0)
    slope, total = tl.load(g + rows, mask=real, other=0.0).to(tl.float32), tl.load(lse + rows, mask=real, other=0.0)
    at, there = rows.to(tl.int64)[:, None] * V + col[None, :], real[:, None] & (col < V)[None, :]
    chance = tl.exp(tl.load(logits + at, mask=there, other=0.0).to(tl.float32) - total[:, None])
    chance -= tl.where(col[None, :] == y[:, None], 1.0, 0.0)
    tl.store(out + at, (chance * slope[:, None]).to(out.dtype.element_ty), mask=there)
