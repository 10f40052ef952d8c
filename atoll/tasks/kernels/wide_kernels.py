"""A Triton kernel for convolutions with many channels that lie next to each other: whole tiles belong to one tap.

What `gather_product` computes for any convolution, without an index of its own for every number: which pixel a row
sees is said once for a tile of channels, and weights lie with the summed axis in front, as newer tensor cores want
them. Only `operators` imports this, and only where Triton is there.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def wide_product(
    x, w, bias, out, pixels, sc, sb, sh, sw,
    N: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, H: tl.constexpr, W: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr,
    PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, BACK: tl.constexpr, BIASED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[c, m, n] = sum_k x[c, source(m, k)] w[c, n, k] + bias[c, n], k = (tap, channel)."""
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    b, r, q = m // (OH * OW), m % (OH * OW) // OW, m % OW
    w += client * N * TAPS * CHANNELS
    at = x + client * sc + b * sb
    chunks: tl.constexpr = CHANNELS // BK
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(TAPS * chunks):
        tap = step // chunks
        channel = step % chunks * BK + tl.arange(0, BK)
        down, right = tap // KW * DH, tap % KW * DW
        if BACK:
            row, column = r + PH - down, q + PW - right
            inside = (m < pixels) & (row >= 0) & (column >= 0)
            if SH * SW > 1:
                inside = inside & (row % SH == 0) & (column % SW == 0)
                row, column = row // SH, column // SW
        else:
            row, column = r * SH - PH + down, q * SW - PW + right
            inside = (m < pixels) & (row >= 0) & (column >= 0)
        inside = inside & (row < H) & (column < W)
        seen = tl.load((at + row * sh + column * sw)[:, None] + channel[None, :], mask=inside[:, None], other=0.0)
        here = w + n[:, None] * (TAPS * CHANNELS) + (tap * CHANNELS + channel)[None, :]
        weight = tl.load(here, mask=(n < N)[:, None], other=0.0)
        total = tl.dot(seen, tl.trans(weight), total, input_precision=PRECISION)
    if BIASED:
        total += tl.load(bias + client * N + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    to = out + (client * pixels + m[:, None]) * N + n[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=(m < pixels)[:, None] & (n < N)[None, :])
