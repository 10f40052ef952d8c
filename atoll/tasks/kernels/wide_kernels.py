"""Triton kernels for convolutions with many channels that lie next to each other: whole tiles belong to one tap.

What `triton_kernels` computes for any convolution, without an index of its own for every number: which pixel a row
sees is said once for a tile of channels, and weights lie with the summed axis in front, as newer tensor cores want
them. Only `wide_operators` imports this, and only where Triton is there.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["batch"])
def wide_product(
    x, w, bias, out, batch, sc, sb, sh, sw,
    N: tl.constexpr, CHANNELS: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    H: tl.constexpr, W: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, BACK: tl.constexpr, TURNED: tl.constexpr, BIASED: tl.constexpr,
    WIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out[c, m, n] = sum_k x[c, source(m, k)] w[c, n, k] + bias[c, n], k = (tap, channel).

    BACK, with a stride, pixels that the same taps reach are taken together: the others need not be multiplied by zero.
    TURNED: the weights are w[c, channel, tap, n].
    """
    client = tl.program_id(2).to(tl.int64)
    RS: tl.constexpr = SH if BACK else 1  # how far apart the rows and columns of one program are
    CS: tl.constexpr = SW if BACK else 1
    ROWS: tl.constexpr = (OH + RS - 1) // RS
    COLUMNS: tl.constexpr = (OW + CS - 1) // CS
    TAPS: tl.constexpr = KH * KW
    pixels = batch * (ROWS * COLUMNS)
    tiles = tl.cdiv(pixels, BM)
    kind = tl.program_id(0) // tiles
    m = tl.program_id(0) % tiles * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    b, i, j = m // (ROWS * COLUMNS), m % (ROWS * COLUMNS) // COLUMNS, m % COLUMNS
    r, q = i * RS + kind // CS, j * CS + kind % CS
    if BACK:
        first_row, first_column = (kind // CS + PH) % SH, (kind % CS + PW) % SW  # of the taps that reach these pixels
        top, left = i + (kind // CS + PH - first_row) // SH, j + (kind % CS + PW - first_column) // SW
        high, across = (KH - first_row + SH - 1) // SH, (KW - first_column + SW - 1) // SW
    else:
        first_row, first_column = 0, 0
        top, left = i * SH - PH, j * SW - PW
        high, across = KH, KW
    real = (m < pixels) & (r < OH) & (q < OW)
    if WIDE:
        at = b.to(tl.int64) * sb + top * sh + left * sw
    else:
        at = b * sb + top * sh + left * sw
    top = tl.where(real, top, -(1 << 24))  # never within the picture
    x += client * sc
    w += client * N * TAPS * CHANNELS
    k = tl.arange(0, BK)
    chunks: tl.constexpr = CHANNELS // BK
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(high * across * chunks):
        turn, start = step // chunks, step % chunks * BK
        if BACK:
            down, right = -(turn // across * DH), -(turn % across * DW)
            tap = (first_row + turn // across * SH) * KW + first_column + turn % across * SW
        else:
            down, right = turn // KW * DH, turn % KW * DW
            tap = turn
        row, column = top + down, left + right
        inside = (row >= 0) & (row < H) & (column >= 0) & (column < W)
        source = at + (down * sh + right * sw + start)
        seen = tl.load(x + source[:, None] + k[None, :], mask=inside[:, None], other=0.0)
        if TURNED:
            here = w + (start + k)[:, None] * (TAPS * N) + (tap * N + n)[None, :]
            if N % BN == 0:
                weight = tl.load(here)
            else:
                weight = tl.load(here, mask=(n < N)[None, :], other=0.0)
            total = tl.dot(seen, weight, total, input_precision=PRECISION)
        else:
            here = w + n[:, None] * (TAPS * CHANNELS) + (tap * CHANNELS + start + k)[None, :]
            if N % BN == 0:
                weight = tl.load(here)
            else:
                weight = tl.load(here, mask=(n < N)[:, None], other=0.0)
            total = tl.dot(seen, tl.trans(weight), total, input_precision=PRECISION)
    if BIASED:
        total += tl.load(bias + client * N + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    to = out + (((client * batch + b) * OH + r) * OW + q)[:, None] * N + n[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=real[:, None] & (n < N)[None, :])


@triton.jit
def wide_weight_gradient(
    g, x, rows, bias, clients, pixels, gc, gb, gh, gw, sc, sb, sh, sw,
    OUT: tl.constexpr, CHANNELS: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr,
    OW: tl.constexpr, H: tl.constexpr, W: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr,
    PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, EACH: tl.constexpr, TAPS: tl.constexpr,
    BIASED: tl.constexpr, WIDE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """rows[s, c, n, tap, channel] = sum of x[c, source(p, tap), channel] g[c, p, n] over the pixels p of part s.

    TAPS of a row of the kernel, one or three, share what is read of g.
    """
    client, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    outs: tl.constexpr = (OUT + BN - 1) // BN
    ins: tl.constexpr = (CHANNELS + BM - 1) // BM
    tile = tl.program_id(0)
    n = tile % outs * BN + tl.arange(0, BN)
    c = tile // outs % ins * BM + tl.arange(0, BM)
    tap = tile // (outs * ins) * TAPS
    down, right = tap // KW * DH - PH, tap % KW * DW - PW
    there, real_n = c < CHANNELS, n < OUT
    x += client * sc
    g += client * gc
    first = tl.zeros((BM, BN), tl.float32)
    if TAPS == 3:
        second = tl.zeros((BM, BN), tl.float32)
        third = tl.zeros((BM, BN), tl.float32)
    alone = tl.zeros((BK, BN), tl.float32)
    for start in range(0, EACH, BK):
        p = part * EACH + start + tl.arange(0, BK)
        b, r, q = p // (OH * OW), p % (OH * OW) // OW, p % OW
        if WIDE:
            b = b.to(tl.int64)
        row, column = r * SH + down, q * SW + right
        within = (p < pixels) & (row >= 0) & (row < H)
        at = b * sb + row * sh + column * sw
        slope_at = g + (b * gb + r * gh + q * gw)[:, None] + n[None, :]
        slope = tl.load(slope_at, mask=(p < pixels)[:, None] & real_n[None, :], other=0.0)
        inside = there[:, None] & (within & (column >= 0) & (column < W))[None, :]
        seen = tl.load(x + c[:, None] + at[None, :], mask=inside, other=0.0)
        first = tl.dot(seen, slope, first, input_precision=PRECISION)
        if TAPS == 3:
            inside = there[:, None] & (within & (column + DW >= 0) & (column + DW < W))[None, :]
            seen = tl.load(x + c[:, None] + (at + DW * sw)[None, :], mask=inside, other=0.0)
            second = tl.dot(seen, slope, second, input_precision=PRECISION)
            inside = there[:, None] & (within & (column + 2 * DW >= 0) & (column + 2 * DW < W))[None, :]
            seen = tl.load(x + c[:, None] + (at + 2 * DW * sw)[None, :], mask=inside, other=0.0)
            third = tl.dot(seen, slope, third, input_precision=PRECISION)
        if BIASED:  # noqa: SIM102
            if tile < outs:
                alone += slope.to(tl.float32)
    place = part * clients + client
    to = rows + (place * OUT + n)[None, :] * (KH * KW * CHANNELS) + (tap * CHANNELS + c)[:, None]
    kind = rows.dtype.element_ty
    wanted = there[:, None] & real_n[None, :]
    tl.store(to, first.to(kind), mask=wanted)
    if TAPS == 3:
        tl.store(to + CHANNELS, second.to(kind), mask=wanted)
        tl.store(to + 2 * CHANNELS, third.to(kind), mask=wanted)
    if BIASED:  # noqa: SIM102 (a constant: what is inside is not compiled without)
        if tile < outs:
            tl.store(bias + place * OUT + n, tl.sum(alone, 0), mask=real_n)


@triton.jit
def lay_patches(
    x, out, pixels, sc, sb, sh, sw,
    CHANNELS: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, H: tl.constexpr,
    W: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr,
    DW: tl.constexpr, BM: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """out[c, p, tap, channel] = x[c, source(p, tap), channel]."""
    client, tap = tl.program_id(2).to(tl.int64), tl.program_id(1)
    p = tl.program_id(0) * BM + tl.arange(0, BM)
    b, r, q = p // (OH * OW), p % (OH * OW) // OW, p % OW
    row, column = r * SH - PH + tap // KW * DH, q * SW - PW + tap % KW * DW
    inside = (p < pixels) & (row >= 0) & (row < H) & (column >= 0) & (column < W)
    at = x + client * sc + b.to(tl.int64) * sb + row * sh + column * sw
    to = out + ((client * pixels + p) * (KH * KW) + tap) * CHANNELS
    for start in range(0, CHANNELS, BC):
        c = start + tl.arange(0, BC)
        seen = tl.load(at[:, None] + c[None, :], mask=inside[:, None] & (c < CHANNELS)[None, :], other=0.0)
        tl.store(to[:, None] + c[None, :], seen, mask=(p < pixels)[:, None] & (c < CHANNELS)[None, :])


@triton.jit
def turn(w, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    """out[c, column, tap, row] = w[c, row, tap, column], by square tiles."""
    wide: tl.constexpr = (COLUMNS + BLOCK - 1) // BLOCK
    client, tap, tile = tl.program_id(2).to(tl.int64), tl.program_id(1), tl.program_id(0)
    r = tile // wide * BLOCK + tl.arange(0, BLOCK)
    c = tile % wide * BLOCK + tl.arange(0, BLOCK)
    base = client * ROWS * COLUMNS * TAPS
    at = w + base + (r * TAPS + tap)[:, None] * COLUMNS + c[None, :]
    value = tl.load(at, mask=(r < ROWS)[:, None] & (c < COLUMNS)[None, :], other=0.0)
    to = out + base + (c * TAPS + tap)[:, None] * ROWS + r[None, :]
    tl.store(to, tl.trans(value), mask=(c < COLUMNS)[:, None] & (r < ROWS)[None, :])
