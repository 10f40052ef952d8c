"""Triton kernels that sort the clients' values of a few coordinates in registers: one read of the stack in all.

Only `coordinates` imports this, and only where Triton is there. The stack lies client after client, `stride` apart.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _tile(x, n, d, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The values of BLOCK coordinates, one row each; infinity where there is no client."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    client = tl.arange(0, ROWS)
    there = (at[:, None] < d) & (client[None, :] < n)
    return tl.load(x + client[None, :].to(tl.int64) * stride + at[:, None], mask=there, other=float("inf")), at, client


@triton.jit
def _mean_of(ordered, client, first, last):
    kept = (client >= first) & (client <= last)
    return tl.sum(tl.where(kept[None, :], ordered, 0.0), 1) / (last - first + 1)


@triton.jit
def mean_of_ranks(x, out, n, d, stride, first, last, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The mean of the values of these ranks."""
    tile, at, client = _tile(x, n, d, stride, ROWS, BLOCK)
    tl.store(out + at, _mean_of(tl.sort(tile, 1), client, first, last), mask=at < d)


@triton.jit
def mean_around_median(x, out, n, d, stride, count, unused, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The mean of the `count` values next to the median; those equally far share what is left."""
    tile, at, client = _tile(x, n, d, stride, ROWS, BLOCK)
    middle = _mean_of(tl.sort(tile, 1), client, (n - 1) // 2, n // 2)
    there = (client[None, :] < n) & (at[:, None] < d)
    away = tl.where(there, tl.abs(tile - middle[:, None]), float("inf"))
    furthest = tl.sum(tl.where((client == count - 1)[None, :], tl.sort(away, 1), 0.0), 1)
    inside, tied = there & (away < furthest[:, None]), there & (away == furthest[:, None])
    spare = count - tl.sum(inside.to(tl.int32), 1)
    shared = tl.sum(tl.where(tied, tile, 0.0), 1) / tl.sum(tied.to(tl.float32), 1)
    total = tl.sum(tl.where(inside, tile, 0.0), 1) + spare.to(tl.float32) * shared
    tl.store(out + at, total / count, mask=at < d)
