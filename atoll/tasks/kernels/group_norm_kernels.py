"""Triton kernels: group normalisation of pictures whose channels lie next to each other, and its gradients.

A program takes a chunk of an example's pixels and a block of its channels, which lie in a row; what chunks found is
merged by a second, small kernel, always in the same order. Only `group_norm_operators` imports this, and only where
Triton is there. `relu` is a number and not a constant: both cases share a kernel, which is compiled once.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _place(x, e, sc, sb, batch):
    """Where an example begins; offsets over all clients need 64 bits."""
    return x + (e // batch).to(tl.int64) * sc + (e % batch).to(tl.int64) * sb


@triton.jit
def chunk_moments(
    x, parts, channels, pixels, chunks, sc, sb, sp, batch, EACH: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """parts[e, chunk] = every channel's mean, and the sum of squared distances from it.

    Distances are taken from the chunk's first pixel, then merged tile by tile (Chan et al., 1983): a mean far above the
    deviation costs no digits.
    """
    e, chunk = tl.program_id(0), tl.program_id(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    real = c < channels
    at = _place(x, e, sc, sb, batch) + c
    first = chunk * EACH
    last = tl.minimum(first + EACH, pixels)
    pivot = tl.load(at + first * sp, mask=real, other=0.0).to(tl.float32)
    mean = tl.zeros((BC,), tl.float32)
    spread = tl.zeros((BC,), tl.float32)
    for tile in range(EACH // BP):
        start = first + tile * BP
        p = start + tl.arange(0, BP)
        inside = (p < last)[:, None] & real[None, :]
        value = tl.load(at[None, :] + (p * sp)[:, None], mask=inside, other=0.0).to(tl.float32)
        value = tl.where(inside, value - pivot[None, :], 0.0)
        seen, new = tl.minimum(start, last) - first, tl.maximum(tl.minimum(last - start, BP), 0)
        share = new.to(tl.float32) / tl.maximum(seen + new, 1)
        middle = tl.sum(value, 0) / tl.maximum(new, 1)
        away = tl.where(inside, value - middle[None, :], 0.0)
        gap = middle - mean
        mean += gap * share
        spread += tl.sum(away * away, 0) + gap * gap * (seen * share)
    to = parts + (e.to(tl.int64) * chunks + chunk) * 2 * channels + c
    tl.store(to, mean + pivot, mask=real)
    tl.store(to + channels, spread, mask=real)


@triton.jit(do_not_specialize=["pixels"])
def group_moments(
    parts, mean, deviation, channels, size, groups, pixels, eps,
    CHUNKS: tl.constexpr, EACH: tl.constexpr, G: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """The mean of every example's group, and one over its deviation, from its channels' chunks."""
    e = tl.program_id(0).to(tl.int64)
    g, s = tl.arange(0, G), tl.arange(0, S)
    real = (g < groups)[:, None] & (s < size)[None, :]
    own = parts + e * CHUNKS * 2 * channels
    at = own + (g * size)[:, None] + s[None, :]
    pivot = tl.load(own + g * size, mask=g < groups, other=0.0)
    count = (pixels * size).to(tl.float32)
    total = tl.zeros((G, S), tl.float32)
    for k in range(CHUNKS):
        n = tl.minimum(EACH, pixels - k * EACH).to(tl.float32)
        gap = tl.load(at + k * 2 * channels, mask=real, other=0.0) - pivot[:, None]
        total += tl.where(real, gap, 0.0) * n
    middle = tl.sum(total, 1) / count
    spread = tl.zeros((G, S), tl.float32)
    for k in range(CHUNKS):
        n = tl.minimum(EACH, pixels - k * EACH).to(tl.float32)
        gap = tl.load(at + k * 2 * channels, mask=real, other=0.0) - pivot[:, None] - middle[:, None]
        gap = tl.where(real, gap, 0.0)
        spread += tl.load(at + (k * 2 + 1) * channels, mask=real, other=0.0) + gap * gap * n
    variance = tl.sum(spread, 1) / count
    tl.store(mean + e * groups + g, middle + pivot, mask=g < groups)
    tl.store(deviation + e * groups + g, 1.0 / tl.sqrt(variance + eps), mask=g < groups)


@triton.jit(do_not_specialize=["relu"])
def normalise(
    x, y, weight, bias, mean, deviation, channels, size, groups, pixels, sc, sb, sp, batch, relu,
    EACH: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """y = (x - mean) * deviation * weight + bias, or zero where that is below it; channels last."""
    e, chunk = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)  # the cache still holds what came last
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    real = c < channels
    at = _place(x, e, sc, sb, batch) + c
    group = e.to(tl.int64) * groups + c // size
    own = (e // batch).to(tl.int64) * channels + c
    middle = tl.load(mean + group, mask=real, other=0.0)
    scale = tl.load(deviation + group, mask=real, other=0.0) * tl.load(weight + own, mask=real, other=0.0).to(
        tl.float32
    )
    shift = tl.load(bias + own, mask=real, other=0.0).to(tl.float32)
    to = y + e.to(tl.int64) * pixels * channels + c
    first = chunk * EACH
    last = tl.minimum(first + EACH, pixels)
    for tile in range(EACH // BP):
        start = first + tile * BP
        p = start + tl.arange(0, BP)
        inside = (p < last)[:, None] & real[None, :]
        value = tl.load(at[None, :] + (p * sp)[:, None], mask=inside, other=0.0).to(tl.float32)
        value = (value - middle[None, :]) * scale[None, :] + shift[None, :]
        value = tl.where((value < 0) & (relu != 0), 0.0, value)
        tl.store(to[None, :] + (p * channels)[:, None], value.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["relu"])
def chunk_slopes(
    g, x, parts, weight, bias, mean, deviation, channels, size, groups, pixels, chunks, gc, gb, gp, sc, sb, sp,
    batch, relu, EACH: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """parts[e, chunk] = every channel's sum of g, and of g times the normalised x."""
    e, chunk = tl.program_id(0), tl.program_id(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    real = c < channels
    at, slope_at = _place(x, e, sc, sb, batch) + c, _place(g, e, gc, gb, batch) + c
    group = e.to(tl.int64) * groups + c // size
    own = (e // batch).to(tl.int64) * channels + c
    middle = tl.load(mean + group, mask=real, other=0.0)
    narrow = tl.load(deviation + group, mask=real, other=0.0)
    factor = tl.load(weight + own, mask=real, other=0.0).to(tl.float32)
    shift = tl.load(bias + own, mask=real, other=0.0).to(tl.float32)
    total = tl.zeros((BC,), tl.float32)
    along = tl.zeros((BC,), tl.float32)
    first = chunk * EACH
    last = tl.minimum(first + EACH, pixels)
    for tile in range(EACH // BP):
        start = first + tile * BP
        p = start + tl.arange(0, BP)
        inside = (p < last)[:, None] & real[None, :]
        value = tl.load(at[None, :] + (p * sp)[:, None], mask=inside, other=0.0).to(tl.float32)
        slope = tl.load(slope_at[None, :] + (p * gp)[:, None], mask=inside, other=0.0).to(tl.float32)
        away = value - middle[None, :]
        off = (away * (narrow * factor)[None, :] + shift[None, :] <= 0) & (relu != 0)
        slope = tl.where(off, 0.0, slope)
        total += tl.sum(slope, 0)
        along += tl.sum(slope * (away * narrow[None, :]), 0)
    to = parts + (e.to(tl.int64) * chunks + chunk) * 2 * channels + c
    tl.store(to, total, mask=real)
    tl.store(to + channels, along, mask=real)


@triton.jit(do_not_specialize=["pixels"])
def group_slopes(
    parts, weight, even, tilt, channels, size, groups, pixels, batch,
    CHUNKS: tl.constexpr, G: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """What every example's group loses, since its mean is zero whatever comes in, and its deviation one."""
    e = tl.program_id(0).to(tl.int64)
    g, s = tl.arange(0, G), tl.arange(0, S)
    real = (g < groups)[:, None] & (s < size)[None, :]
    c = (g * size)[:, None] + s[None, :]
    factor = tl.load(weight + e // batch * channels + c, mask=real, other=0.0).to(tl.float32)
    at = parts + e * CHUNKS * 2 * channels + c
    total = tl.zeros((G, S), tl.float32)
    along = tl.zeros((G, S), tl.float32)
    for k in range(CHUNKS):
        total += tl.load(at + k * 2 * channels, mask=real, other=0.0)
        along += tl.load(at + (k * 2 + 1) * channels, mask=real, other=0.0)
    count = (pixels * size).to(tl.float32)
    tl.store(even + e * groups + g, tl.sum(total * factor, 1) / count, mask=g < groups)
    tl.store(tilt + e * groups + g, tl.sum(along * factor, 1) / count, mask=g < groups)


@triton.jit
def client_slopes(
    parts, by_weight, by_bias, channels, ROWS: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):  # fmt: skip
    """The gradients of a client's weight and bias: the sums over the chunks of all its examples."""
    client = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    real = c < channels
    at = parts + client * ROWS * 2 * channels + c
    total = tl.zeros((BR, BC), tl.float32)
    along = tl.zeros((BR, BC), tl.float32)
    for start in range(0, ROWS, BR):
        r = start + tl.arange(0, BR)
        inside = (r < ROWS)[:, None] & real[None, :]
        here = at[None, :] + (r * 2 * channels)[:, None]
        total += tl.load(here, mask=inside, other=0.0)
        along += tl.load(here + channels, mask=inside, other=0.0)
    to = client * channels + c
    tl.store(by_bias + to, tl.sum(total, 0).to(by_bias.dtype.element_ty), mask=real)
    tl.store(by_weight + to, tl.sum(along, 0).to(by_weight.dtype.element_ty), mask=real)


@triton.jit(do_not_specialize=["relu"])
def input_slopes(
    g, x, out, weight, bias, mean, deviation, even, tilt, channels, size, groups, pixels, gc, gb, gp, sc, sb, sp,
    batch, relu, EACH: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """out = (g * weight - even - normalised x * tilt) * deviation; channels last."""
    e, chunk = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1)
    c = tl.program_id(2) * BC + tl.arange(0, BC)
    real = c < channels
    at, slope_at = _place(x, e, sc, sb, batch) + c, _place(g, e, gc, gb, batch) + c
    group = e.to(tl.int64) * groups + c // size
    own = (e // batch).to(tl.int64) * channels + c
    middle = tl.load(mean + group, mask=real, other=0.0)
    narrow = tl.load(deviation + group, mask=real, other=0.0)
    level = tl.load(even + group, mask=real, other=0.0)
    lean = tl.load(tilt + group, mask=real, other=0.0)
    factor = tl.load(weight + own, mask=real, other=0.0).to(tl.float32)
    shift = tl.load(bias + own, mask=real, other=0.0).to(tl.float32)
    to = out + e.to(tl.int64) * pixels * channels + c
    first = chunk * EACH
    last = tl.minimum(first + EACH, pixels)
    for tile in range(EACH // BP):
        start = first + tile * BP
        p = start + tl.arange(0, BP)
        inside = (p < last)[:, None] & real[None, :]
        value = tl.load(at[None, :] + (p * sp)[:, None], mask=inside, other=0.0).to(tl.float32)
        slope = tl.load(slope_at[None, :] + (p * gp)[:, None], mask=inside, other=0.0).to(tl.float32)
        away = value - middle[None, :]
        off = (away * (narrow * factor)[None, :] + shift[None, :] <= 0) & (relu != 0)
        slope = tl.where(off, 0.0, slope)
        value = (slope * factor[None, :] - level[None, :] - away * (narrow * lean)[None, :]) * narrow[None, :]
        tl.store(to[None, :] + (p * channels)[:, None], value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_relu(x, y, out, total, BLOCK: tl.constexpr):
    """out = relu(x + y), all three alike in memory."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = i < total
    value = tl.load(x + i, mask=real, other=0.0).to(tl.float32) + tl.load(y + i, mask=real, other=0.0).to(tl.float32)
    tl.store(out + i, tl.where(value < 0, 0.0, value).to(out.dtype.element_ty), mask=real)
