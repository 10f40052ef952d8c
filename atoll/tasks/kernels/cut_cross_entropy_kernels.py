"""Triton kernels: cross-entropy of a linear layer's scores, which are made tile by tile and never written down.

Only `cut_cross_entropy` imports this, and only where Triton is there. Operands are halves, with a power of two for
every tile of rows: a half has the ten bits of TF32 and half its size, and tensor cores take it with either axis in
front. A row is as wide as two tiles of columns together, P0 + P1; those beyond D are zero. Logarithms are of base 2.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
SHIFT: tl.constexpr = tl.constexpr(14.0)  # of what becomes a half: it is at most 2^SHIFT, or twice that


@triton.jit
def halves(x, out, scales, parts, R: tl.constexpr, D: tl.constexpr, P: tl.constexpr, BR: tl.constexpr,
           BP: tl.constexpr):  # fmt: skip
    """x = out scales, where BR rows share a scale: their largest number lies between 2^SHIFT and twice that."""
    client, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    r, d = part * BR + tl.arange(0, BR), tl.arange(0, BP)
    at, real = (client * R + r)[:, None], (r < R)[:, None]
    value = tl.load(x + at * D + d[None, :], mask=real & (d < D)[None, :], other=0.0).to(tl.float32)
    largest = tl.max(tl.max(tl.abs(value), 1), 0).to(tl.int32, bitcast=True)
    power = tl.minimum(tl.maximum((largest >> 23) & 255, 87), 167)  # of two, and 127; no quotient of two overflows
    one_over_scale = ((268 - power) << 23).to(tl.float32, bitcast=True)
    tl.store(out + at * P + d[None, :], (value * one_over_scale).to(tl.float16), mask=real & (d < P)[None, :])
    tl.store(scales + tl.program_id(0), ((power - 14) << 23).to(tl.float32, bitcast=True))


@triton.jit
def _add_classes(
    start, x0, x1, x_scale, w, w_scales, y, top, total, total0, total1, before,
    V: tl.constexpr, P0: tl.constexpr, P1: tl.constexpr, BV: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """The sums with those of a tile of classes; only the last may reach beyond V. `before`: the scale of the sums."""
    P: tl.constexpr = P0 + P1
    scale = tl.load(w_scales + start // BV)
    v = tl.arange(0, BV)
    there = v < V - start
    at = w + start * P + v[:, None] * P
    if LAST:
        w0 = tl.load(at + tl.arange(0, P0)[None, :], mask=there[:, None], other=0.0)
    else:
        w0 = tl.load(at + tl.arange(0, P0)[None, :])
    score = tl.dot(x0, tl.trans(w0))
    if P1 > 0:
        if LAST:
            w1 = tl.load(at + P0 + tl.arange(0, P1)[None, :], mask=there[:, None], other=0.0)
        else:
            w1 = tl.load(at + P0 + tl.arange(0, P1)[None, :])
        score = tl.dot(x1, tl.trans(w1), score)
    score = tl.where(v[None, :] == (y - start)[:, None], float("-inf"), score)
    if LAST:
        score = tl.where(there[None, :], score, float("-inf"))
    times = x_scale * scale
    above = tl.maximum(top, tl.max(score, 1) * times)
    chance = tl.exp2(score * times - (above - SHIFT)[:, None])
    fade = tl.exp2(top - above)
    half, rescale = chance.to(tl.float16), fade * (before / scale)
    total0 = tl.dot(half, w0, total0 * rescale[:, None])
    if P1 > 0:
        total1 = tl.dot(half, w1, total1 * rescale[:, None])
    return above, total * fade + tl.sum(chance, 1), total0, total1, scale


@triton.jit
def _gathered_score(x, w, known, y, P: tl.constexpr, P0: tl.constexpr, P1: tl.constexpr):
    """x[r] w[y[r]] of rows that are in memory: the product of the same halves that the tiles multiply."""
    d, inside = tl.arange(0, P0)[None, :], known[:, None]
    own = tl.load(w + y[:, None] * P + d, mask=inside, other=0.0).to(tl.float32)
    score = tl.sum(tl.load(x + d, mask=inside, other=0.0).to(tl.float32) * own, 1)
    if P1 > 0:
        e = P0 + tl.arange(0, P1)[None, :]
        own = tl.load(w + y[:, None] * P + e, mask=inside, other=0.0).to(tl.float32)
        score += tl.sum(tl.load(x + e, mask=inside, other=0.0).to(tl.float32) * own, 1)
    return score


@triton.jit
def _store_slopes(total, share, missed, own, out, there, known, d, D: tl.constexpr):
    """missed (total share - own): what the mean over the other classes has more than the target."""
    inside = (d < D)[None, :]
    target = tl.load(own + d[None, :], mask=known[:, None] & inside, other=0.0).to(tl.float32)
    tl.store(out + d[None, :], missed[:, None] * (total * share[:, None] - target), mask=there[:, None] & inside)


@triton.jit
def losses(
    x, x_scales, w, w_scales, weight, targets, out, lse, missed, slopes, parts, R: tl.constexpr,
    V: tl.constexpr, D: tl.constexpr, P0: tl.constexpr, P1: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Of every row: the loss, log2 sum 2^score, the chance of all other classes, and the loss's gradient by x.

    That gradient is a mean of weights, as attention's output is of values: it comes with the sum of exp in one pass.
    The target takes no part in it: next to its chance, those of all others would be lost in rounding.
    """
    P: tl.constexpr = P0 + P1
    TILES: tl.constexpr = (V + BV - 1) // BV
    client, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    r, d = part * BR + tl.arange(0, BR), tl.arange(0, P0)
    there, place = r < R, client * R + r
    w += client * V * P
    w_scales += client * TILES
    x += place[:, None] * P
    y = tl.load(targets + place, mask=there, other=0).to(tl.int32)
    x_scale = tl.load(x_scales + tl.program_id(0)) * LOG2E
    x0, total0 = tl.load(x + d[None, :], mask=there[:, None], other=0.0), tl.zeros((BR, P0), tl.float32)
    if P1 > 0:
        e = P0 + tl.arange(0, P1)
        x1, total1 = tl.load(x + e[None, :], mask=there[:, None], other=0.0), tl.zeros((BR, P1), tl.float32)
    else:
        x1, total1 = 0, 0
    top, total, before = tl.full((BR,), -3.0e38, tl.float32), tl.zeros((BR,), tl.float32), tl.load(w_scales)
    for start in range(0, V // BV * BV, BV):
        top, total, total0, total1, before = _add_classes(
            start, x0, x1, x_scale, w, w_scales, y, top, total, total0, total1, before, V, P0, P1, BV, False
        )
    if V % BV > 0:
        top, total, total0, total1, before = _add_classes(
            V // BV * BV, x0, x1, x_scale, w, w_scales, y, top, total, total0, total1, before, V, P0, P1, BV, True
        )
    known = there & (y >= 0) & (y < V)
    own = _gathered_score(x, w, known, y, P, P0, P1) * x_scale
    own *= tl.load(w_scales + y // BV, mask=known, other=float("nan"))
    rest = top + (tl.log2(total) - SHIFT)  # of all but the target
    away = tl.exp2(-tl.abs(rest - own))
    more = tl.log2(1.0 + away)
    miss = tl.where(rest > own, 1.0, away) / (1.0 + away)
    tl.store(out + place, (tl.maximum(rest - own, 0.0) + more) / LOG2E, mask=there)
    tl.store(lse + place, tl.maximum(rest, own) + more, mask=there)
    tl.store(missed + place, miss, mask=there)
    weight += (client * V + y)[:, None] * D
    slopes += place[:, None] * D
    _store_slopes(total0, before / total, miss, weight, slopes, there, known, d, D)
    if P1 > 0:
        _store_slopes(total1, before / total, miss, weight, slopes, there, known, e, D)


@triton.jit
def weight_gradient(
    g, steepest, x, x_scales, w, w_scales, lse, missed, targets, out, parts, R: tl.constexpr, V: tl.constexpr,
    D: tl.constexpr, P0: tl.constexpr, P1: tl.constexpr, BR: tl.constexpr, BV: tl.constexpr, EACH: tl.constexpr,
    SCALES: tl.constexpr,
):  # fmt: skip
    """out[v] = sum over rows of g[r] (chance[r, v] - [v = target]) x[r]; EACH classes share a scale, and BR rows."""
    P: tl.constexpr = P0 + P1
    TILES: tl.constexpr = (R + BR - 1) // BR
    client, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    v, d = part * BV + tl.arange(0, BV), tl.arange(0, P0)
    there, place = v < V, (client * V + v)[:, None]
    x += client * R * P
    x_scales += client * TILES
    g += client * R
    lse += client * R
    missed += client * R
    targets += client * R
    scale = tl.load(w_scales + client * ((V + EACH - 1) // EACH) + part * BV // EACH) * LOG2E
    tile = tl.arange(0, SCALES)
    largest = tl.max(tl.load(x_scales + tile, mask=tile < TILES, other=0.0), 0) * tl.load(steepest + client)
    largest = tl.maximum(largest, 1.0e-25) / 16384.0  # of g times a scale; 2^SHIFT of it
    w0, total0 = tl.load(w + place * P + d[None, :], mask=there[:, None], other=0.0), tl.zeros((BV, P0), tl.float32)
    if P1 > 0:
        e = P0 + tl.arange(0, P1)
        w1, total1 = tl.load(w + place * P + e[None, :], mask=there[:, None], other=0.0), tl.zeros((BV, P1), tl.float32)
    for start in range(0, R, BR):
        x_scale = tl.load(x_scales + start // BR)
        r = start + tl.arange(0, BR)
        real = r < R
        x0 = tl.load(x + r[:, None] * P + d[None, :], mask=real[:, None], other=0.0)
        score = tl.dot(w0, tl.trans(x0))
        if P1 > 0:
            x1 = tl.load(x + r[:, None] * P + e[None, :], mask=real[:, None], other=0.0)
            score = tl.dot(w1, tl.trans(x1), score)
        chance = tl.exp2(score * (scale * x_scale) - tl.load(lse + r, mask=real, other=0.0)[None, :])
        y, miss = tl.load(targets + r, mask=real, other=-1), tl.load(missed + r, mask=real, other=0.0)
        chance = tl.where(v[:, None] == y.to(tl.int32)[None, :], -miss[None, :], chance)
        slope = tl.load(g + r, mask=real, other=0.0) * (x_scale / largest)
        half = (chance * slope[None, :]).to(tl.float16)
        total0 = tl.dot(half, x0, total0)
        if P1 > 0:
            total1 = tl.dot(half, x1, total1)
    out += place * D
    kind = out.dtype.element_ty
    tl.store(out + d[None, :], (total0 * largest).to(kind), mask=there[:, None] & (d < D)[None, :])
    if P1 > 0:
        tl.store(out + e[None, :], (total1 * largest).to(kind), mask=there[:, None] & (e < D)[None, :])
