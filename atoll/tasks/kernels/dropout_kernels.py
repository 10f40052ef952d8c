"""Triton kernels: keyed dropout, alone or after a bias and a ReLU, whose masks are never written; and its gradient.

Only `dropout`, `bias_relu` and `attention` import this, and only where Triton is there. A program has a piece of one
example's row.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def key_word(key, salt):
    """The key's two words and a layer's salt as one."""
    return tl.load(key).to(tl.uint32) ^ (tl.load(key + 1).to(tl.uint32) << 1) ^ salt.to(tl.uint32, bitcast=True)


@triton.jit
def kept(drawn, half, before, word, least):
    """`dropout.keep_mask` of some columns; `before`: the words of the rows before this one."""
    upper = drawn < half
    v = (tl.where(upper, drawn, drawn - half) + before).to(tl.uint32, bitcast=True) * 0x9E3779B1 + word
    v = (v ^ (v >> 16)) * 0x7FEB352D
    v = (v ^ (v >> 15)) * 0x846CA68B
    v = v ^ (v >> 16)
    return tl.where(upper, v, v << 16).to(tl.int32, bitcast=True) >= least


@triton.jit(do_not_specialize=["salt", "least", "rows"])
def keyed_dropout(
    x, bias, keys, out, rows, wide, salt, least, scale,
    CHANNELS: tl.constexpr, PIXELS: tl.constexpr, LAST: tl.constexpr, PER_CHANNEL: tl.constexpr,
    PER_ROW: tl.constexpr, DROPPED: tl.constexpr, FEATURES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[r, m] = keep[r, m] x[r, m] scale; of relu(x + bias[m % FEATURES]) where FEATURES is not 0.

    With LAST m runs over (pixel, channel) in memory, though masks are addressed by (channel, pixel).
    """
    row = tl.program_id(0)
    client = row // rows
    m = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = m < wide
    at = row.to(tl.int64) * wide
    value = tl.load(x + at + m, mask=real, other=0.0).to(tl.float32)
    if FEATURES > 0:
        value += tl.load(bias + client.to(tl.int64) * FEATURES + m % FEATURES, mask=real, other=0.0).to(tl.float32)
        value = tl.where(value < 0, 0.0, value)  # not `maximum`: what is no number stays so
    if DROPPED:
        if PER_CHANNEL:
            drawn = m % CHANNELS if LAST else m // PIXELS
            half = (CHANNELS + 1) // 2
        else:
            drawn = m % CHANNELS * PIXELS + m // CHANNELS if LAST else m
            half = (wide + 1) // 2
        word = key_word(keys + 2 * (row if PER_ROW else client).to(tl.int64), salt)
        before = 0 if PER_ROW else row % rows * half
        value = tl.where(kept(drawn, half, before, word, least), value * scale, 0.0)
    tl.store(out + at + m, value.to(out.dtype.element_ty), mask=real)


@triton.jit
def relu_dropout_gradient(
    g, h, out, partial, rows, splits, scale, FEATURES: tl.constexpr, EACH: tl.constexpr, BR: tl.constexpr,
    BF: tl.constexpr,
):  # fmt: skip
    """out[c, r, f] = g scale where h is above zero, else 0; partial[c, s, f]: its sum over the rows of part s."""
    client, part = tl.program_id(0) // splits, tl.program_id(0) % splits
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    first = client.to(tl.int64) * rows * FEATURES
    total = tl.zeros((BR, BF), tl.float32)
    for start in range(0, EACH, BR):
        r = part * EACH + start + tl.arange(0, BR)
        real = (r < rows)[:, None] & (f < FEATURES)[None, :]
        at = first + r[:, None] * FEATURES + f[None, :]
        value = tl.load(h + at, mask=real, other=0.0)
        slope = tl.load(g + at, mask=real, other=0.0).to(tl.float32) * scale
        slope = tl.where(value <= 0, 0.0, slope)
        tl.store(out + at, slope.to(out.dtype.element_ty), mask=real)
        total += slope
    tl.store(partial + tl.program_id(0).to(tl.int64) * FEATURES + f, tl.sum(total, 0), mask=f < FEATURES)
