"""A Triton kernel for inner products of all pairs of updates: one read of the stack in all.

Only `gram` imports this, and only where Triton is there.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def products(x, out, n, d, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """Inner products of all pairs of rows over one stretch of columns, (ROWS, ROWS) each; float32 by parts of TF32."""
    client = tl.arange(0, ROWS)
    total = tl.zeros((ROWS, ROWS), tl.float32)
    for step in range(STEPS):
        at = (tl.program_id(0) * STEPS + step) * BLOCK + tl.arange(0, BLOCK)
        there = (client[:, None] < n) & (at[None, :] < d)
        tile = tl.load(x + client[:, None].to(tl.int64) * stride + at[None, :], mask=there, other=0.0)
        total += tl.dot(tile, tl.trans(tile), input_precision="tf32x3")
    to = tl.program_id(0).to(tl.int64) * ROWS * ROWS + client[:, None] * ROWS + client[None, :]
    tl.store(out + to, total)
