"""A Triton kernel for the lengths of position codes. Only `positions` imports this, and only where Triton is there."""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def rice_bytes(positions, lengths, count, r, BLOCK: tl.constexpr):
    """The bytes of one client's code: of every gap its quotient, a one and r bits."""
    client = tl.program_id(0).to(tl.int64)
    quotients = tl.zeros((BLOCK,), tl.int64)
    for first in range(0, count, BLOCK):
        i = first + tl.arange(0, BLOCK)
        inside = i < count
        here = tl.load(positions + client * count + i, mask=inside, other=0)
        before = tl.load(positions + client * count + i - 1, mask=inside & (i > 0), other=-1)
        quotients += tl.where(inside, (here - before - 1) >> r, 0)
    bits = tl.sum(quotients, 0) + (client * 0 + count) * (r + 1)  # Triton makes a count of one a plain number
    tl.store(lengths + client, (bits + 7) // 8)
