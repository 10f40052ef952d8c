"""Triton kernel: gradients of tokens' rows added to a gradient of all rows, always in the same order.

Only `embedding` imports this, and only where Triton is there.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def add_rows(tokens, rows, out, V: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr):
    """out[token] += the sum of its rows, by the program of the first place where the token stands."""
    client, r = (tl.program_id(0) // R).to(tl.int64), tl.program_id(0) % R
    tokens += client * R
    rows += client * R * D
    own = tl.load(tokens + r)
    i, d = tl.arange(0, BR), tl.arange(0, BD)
    earlier = tl.zeros((BR,), tl.int32)
    for start in range(0, R, BR):
        at = start + i
        earlier += ((at < r) & (tl.load(tokens + at, mask=at < r, other=-1) == own)).to(tl.int32)
    if tl.sum(earlier, 0) == 0:
        total = tl.zeros((BD,), tl.float32)
        for start in range(0, R, BR):
            at = start + i
            alike = (at < R) & (tl.load(tokens + at, mask=at < R, other=-1) == own)
            if tl.sum(alike.to(tl.int32), 0) > 0:
                inside = alike[:, None] & (d < D)[None, :]
                total += tl.sum(tl.load(rows + at[:, None] * D + d[None, :], mask=inside, other=0.0).to(tl.float32), 0)
        place = out + (client * V + own) * D + d
        known = (d < D) & (own >= 0) & (own < V)
        before = tl.load(place, mask=known, other=0.0).to(tl.float32)
        tl.store(place, (before + total).to(out.dtype.element_ty), mask=known)
