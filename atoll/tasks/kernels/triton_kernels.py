"""Triton kernels: a matrix product that gathers its patches as it goes, the same transposed, and pooling.

Only `operators` imports this, and only where Triton is there. The inner axis runs over (row, column, channel) of the
kernel with channels fastest; every size that says how an index splits up is a compile-time constant.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _pixel(m, OH: tl.constexpr, OW: tl.constexpr):
    """Batch row, row and column of an output pixel."""
    return m // (OH * OW), m % (OH * OW) // OW, m % OW


@triton.jit
def _tap(k, CHANNELS: tl.constexpr, KW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr):
    """Channel, and how far down and right, of an inner index."""
    tap = k // CHANNELS
    return k % CHANNELS, tap // KW * DH, tap % KW * DW


@triton.jit
def gather_product(
    x, w, bias, out, pixels, sc, sb, sk, sh, sw,
    N: tl.constexpr, CHANNELS: tl.constexpr, INNER: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, H: tl.constexpr, W: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr,
    PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, BACK: tl.constexpr, BIASED: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[c, m, n] = sum_k x[c, source(m, k)] w[c, k, n] + bias[c, n]."""
    client = tl.program_id(2).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    b, r, q = _pixel(m, OH, OW)
    w += client * INNER * N
    total = tl.zeros((BM, BN), tl.float32)
    if BACK:
        top, left = r + PH, q + PW
        at = x + client * sc + b * sb
    else:
        top, left = r * SH - PH, q * SW - PW
        at = x + client * sc + b * sb + top * sh + left * sw  # an offset of the pixel plus one of the tap
    for start in range(0, INNER, BK):
        k = start + tl.arange(0, BK)
        channel, down, right = _tap(k, CHANNELS, KW, DH, DW)
        inside = (m < pixels)[:, None] & (k < INNER)[None, :]
        if BACK:
            row, column = top[:, None] - down[None, :], left[:, None] - right[None, :]
            inside = inside & (row >= 0) & (column >= 0)
            if SH * SW > 1:
                inside = inside & (row % SH == 0) & (column % SW == 0)
                row, column = row // SH, column // SW
            inside = inside & (row < H) & (column < W)
            seen = tl.load(at[:, None] + (channel * sk)[None, :] + row * sh + column * sw, mask=inside, other=0.0)
        else:
            if PH + PW > 0:
                row, column = top[:, None] + down[None, :], left[:, None] + right[None, :]
                inside = inside & (row >= 0) & (row < H) & (column >= 0) & (column < W)
            seen = tl.load(at[:, None] + (channel * sk + down * sh + right * sw)[None, :], mask=inside, other=0.0)
        there = (k < INNER)[:, None] & (n < N)[None, :]
        weight = tl.load(w + k[:, None] * N + n[None, :], mask=there, other=0.0)
        total = tl.dot(seen, weight, total, input_precision=PRECISION)
    if BIASED:
        total += tl.load(bias + client * N + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    to = out + (client * pixels + m[:, None]) * N + n[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=(m < pixels)[:, None] & (n < N)[None, :])


@triton.jit
def weight_gradient(
    g, x, rows, bias, clients, pixels, gc, gb, gk, gh, gw, sc, sb, sk, sh, sw,
    OUT: tl.constexpr, CHANNELS: tl.constexpr, INNER: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, H: tl.constexpr, W: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr,
    PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, EACH: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """rows[s, c, n, k] = sum of x[c, source(p, k)] g[c, p, n] over the pixels p of part s; bias: the sum of g alone."""
    client, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    wide: tl.constexpr = (OUT + BN - 1) // BN
    tile = tl.program_id(0)
    k = (tile // wide) * BM + tl.arange(0, BM)
    n = (tile % wide) * BN + tl.arange(0, BN)
    channel, down, right = _tap(k, CHANNELS, KW, DH, DW)
    x += client * sc
    g += client * gc
    tap = channel * sk + down * sh + right * sw
    total = tl.zeros((BM, BN), tl.float32)
    alone = tl.zeros((BK, BN), tl.float32)
    for start in range(0, EACH, BK):
        i = start + tl.arange(0, BK)
        p = part * EACH + i
        real = (p < pixels) & (i < EACH)
        b, r, q = _pixel(p, OH, OW)
        top, left = r * SH - PH, q * SW - PW
        inside = real[None, :] & (k < INNER)[:, None]
        if PH + PW > 0:
            row, column = top[None, :] + down[:, None], left[None, :] + right[:, None]
            inside = inside & (row >= 0) & (row < H) & (column >= 0) & (column < W)
        seen = tl.load(x + tap[:, None] + (b * sb + top * sh + left * sw)[None, :], mask=inside, other=0.0)
        at = (b * gb + r * gh + q * gw)[:, None] + (n * gk)[None, :]
        slope = tl.load(g + at, mask=real[:, None] & (n < OUT)[None, :], other=0.0)
        total = tl.dot(seen, slope, total, input_precision=PRECISION)
        if tile < wide:  # the bias sees what the first rows of tiles see; summed over pixels once, at the end
            alone += slope.to(tl.float32)
    place = part * clients + client
    there = (k < INNER)[:, None] & (n < OUT)[None, :]
    tl.store(rows + (place * OUT + n[None, :]) * INNER + k[:, None], total, mask=there)
    if tile < wide:
        tl.store(bias + place * OUT + n, tl.sum(alone, 0), mask=n < OUT)


@triton.jit
def _flat(BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """This program's elements; in 64 bits where there are so many that offsets need them."""
    first = tl.program_id(0)
    if WIDE:
        first = first.to(tl.int64)
    return first * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def max_pool(x, out, places, total, sn, sc, sh, sw, C: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
             K: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):  # fmt: skip
    """The largest of every window, and its place there; channels last. The first of equals, and NaN before all."""
    i = _flat(BLOCK, WIDE)
    real = i < total
    c, q, r, n = i % C, i // C % OW, i // (C * OW) % OH, i // (C * OW * OH)
    at = x + n * sn + c * sc + r * K * sh + q * K * sw
    best = tl.load(at, mask=real, other=0.0)
    place = tl.zeros((BLOCK,), tl.int32)
    for k in tl.static_range(1, K * K):
        value = tl.load(at + k // K * sh + k % K * sw, mask=real, other=0.0)
        better = (value > best) | ((value != value) & (best == best))
        best, place = tl.where(better, value, best), tl.where(better, k, place)
    tl.store(out + i, best, mask=real)
    tl.store(places + i, place.to(tl.uint8), mask=real)


@triton.jit
def max_pool_gradient(g, places, out, total, sn, sc, sh, sw, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
                      OH: tl.constexpr, OW: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr,
                      WIDE: tl.constexpr):  # fmt: skip
    """Every gradient where its window's largest was, zero elsewhere; channels last."""
    i = _flat(BLOCK, WIDE)
    real = i < total
    c, w, h, n = i % C, i // C % W, i // (C * W) % H, i // (C * W * H)
    r, q = h // K, w // K
    covered = real & (r < OH) & (q < OW)
    slope = tl.load(g + n * sn + c * sc + r * sh + q * sw, mask=covered, other=0.0)
    place = tl.load(places + ((n * OH + r) * OW + q) * C + c, mask=covered, other=0)
    mine = covered & (place == h % K * K + w % K)
    tl.store(out + i, tl.where(mine, slope, 0.0), mask=real)
