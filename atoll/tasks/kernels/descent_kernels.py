"""Triton kernels that move all weights of a stack. Only `descent` and `layouts` import this, where Triton is there."""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def add_scaled(x, y, by, out, each, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """out[c, i] = x[c, i] + by[c] y[c, i]."""
    client = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = i < each
    if WIDE:
        at = client.to(tl.int64) * each + i
    else:
        at = client * each + i
    scaled = tl.load(y + at, mask=real) * tl.load(by + client)
    tl.store(out + at, tl.load(x + at, mask=real) + scaled, mask=real)


@triton.jit
def taps_last(x, out, TAPS: tl.constexpr, CHANNELS: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr):
    """out[r, channel, tap] = x[r, tap, channel]."""
    row = tl.program_id(0).to(tl.int64) * (TAPS * CHANNELS)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    t = tl.arange(0, BT)
    real = (c < CHANNELS)[:, None] & (t < TAPS)[None, :]
    value = tl.load(x + row + t[None, :] * CHANNELS + c[:, None], mask=real, other=0.0)
    tl.store(out + row + c[:, None] * TAPS + t[None, :], value, mask=real)
