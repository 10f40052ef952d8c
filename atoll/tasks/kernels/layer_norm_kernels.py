"""Triton kernels: layer normalisation of rows that lie in one piece, and its gradient.

Only `layer_norm` imports this, and only where Triton is there. A program has some rows of one client; means and
deviations are taken again for the gradient, since the rows are read there anyway.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _normalised(x, at, real, eps, N: tl.constexpr):
    """The rows of a tile with mean 0 and variance 1, and one over their deviations."""
    value = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    centred = tl.where(real, value - (tl.sum(value, 1) / N)[:, None], 0.0)
    spread = tl.rsqrt(tl.sum(centred * centred, 1) / N + eps)
    return centred * spread[:, None], spread


@triton.jit
def layer_norm(x, weight, bias, out, rows, parts, eps, N: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr):
    """out = normalised(x) weight[client] + bias[client]."""
    client, n = (tl.program_id(0) // parts).to(tl.int64), tl.arange(0, BN)
    r = tl.program_id(0) % parts * BR + tl.arange(0, BR)
    real = (r < rows)[:, None] & (n < N)[None, :]
    at = client * rows * N + r[:, None] * N + n[None, :]
    w = tl.load(weight + client * N + n, mask=n < N, other=0.0).to(tl.float32)
    b = tl.load(bias + client * N + n, mask=n < N, other=0.0).to(tl.float32)
    value, _ = _normalised(x, at, real, eps, N)
    tl.store(out + at, (value * w[None, :] + b[None, :]).to(out.dtype.element_ty), mask=real)


@triton.jit
def layer_norm_gradient(
    g, x, weight, out, partial, rows, parts, eps, N: tl.constexpr, EACH: tl.constexpr, BR: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    """out: by x; partial[client, part, 0 and 1]: by weight and bias, summed over the rows of a part."""
    client, n = (tl.program_id(0) // parts).to(tl.int64), tl.arange(0, BN)
    part = tl.program_id(0) % parts
    w = tl.load(weight + client * N + n, mask=n < N, other=0.0).to(tl.float32)
    by_weight, by_bias = tl.zeros((BR, BN), tl.float32), tl.zeros((BR, BN), tl.float32)
    for start in range(0, EACH, BR):
        r = part * EACH + start + tl.arange(0, BR)
        real = (r < rows)[:, None] & (n < N)[None, :]
        at = client * rows * N + r[:, None] * N + n[None, :]
        value, spread = _normalised(x, at, real, eps, N)
        slope = tl.load(g + at, mask=real, other=0.0).to(tl.float32)
        by_weight += slope * value
        by_bias += slope
        slope *= w[None, :]
        even, tilt = tl.sum(slope, 1) / N, tl.sum(slope * value, 1) / N
        gradient = (slope - even[:, None] - value * tilt[:, None]) * spread[:, None]
        tl.store(out + at, gradient.to(out.dtype.element_ty), mask=real)
    to = partial + tl.program_id(0).to(tl.int64) * 2 * N + n
    tl.store(to, tl.sum(by_weight, 0), mask=n < N)
    tl.store(to + N, tl.sum(by_bias, 0), mask=n < N)
