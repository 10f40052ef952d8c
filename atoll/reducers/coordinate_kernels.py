"""Triton kernels that find the clients' values of given ranks in registers: one read of the stack in all.

For more clients than a thread could hold (`network_kernels`), and for means around the median. Only `coordinates`
imports this, and only where Triton is there. The stack lies client after client, `stride` apart. A program is one warp
with a few columns, so that every thread counts clients of its own: a rank is found by halving, and counting who is
below, which `tl.sort` is several times slower than.
"""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _tile(x, n, d, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The values of BLOCK coordinates, a row of them for each client; infinity where there is no client."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    client = tl.arange(0, ROWS)
    there = (client[:, None] < n) & (at[None, :] < d)
    return tl.load(x + client[:, None].to(tl.int64) * stride + at[None, :], mask=there, other=float("inf")), at, there


@triton.jit
def _turned(bits):
    """Whole numbers in the order of the floats with these bits; and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _float(keys):
    return _turned(keys).to(tl.float32, bitcast=True)


@triton.jit
def _of_rank(keys, rank):
    """The key of this rank in every column, counted from 0: by halves, until a bound has exactly `rank` below it."""
    least, beyond = tl.min(keys, 0), tl.max(keys, 0) + 1
    reached = tl.sum((keys < least[None, :]).to(tl.int32), 0)
    unsettled = (reached != rank) & (beyond - 1 > least)
    while tl.max(unsettled.to(tl.int32), 0) > 0:
        middle = (least >> 1) + (beyond >> 1) + (least & beyond & 1)
        below = tl.sum((keys < middle[None, :]).to(tl.int32), 0)
        up = unsettled & (below <= rank)
        beyond = tl.where(unsettled & (below > rank), middle, beyond)
        least, reached = tl.where(up, middle, least), tl.where(up, below, reached)
        unsettled = (reached != rank) & (beyond - 1 > least)
    return tl.min(tl.where(keys >= least[None, :], keys, 0x7FFFFFFF), 0)


@triton.jit
def _of_next_rank(keys, low, at_most, rank):
    """The key of `rank`, from that of the rank before, which `at_most` keys do not exceed."""
    above = tl.min(tl.where(keys > low[None, :], keys, 0x7FFFFFFF), 0)
    return tl.where(at_most > rank, low, above)


@triton.jit
def _mean_of_ranks(tile, keys, first, last):
    """The mean of the values of these ranks. Sums in float64: the order of clients does not show."""
    low = _of_rank(keys, first)
    at_most = tl.sum((keys <= low[None, :]).to(tl.int32), 0)
    if last - first > 1:
        high = _of_rank(keys, last)
    else:
        high = _of_next_rank(keys, low, at_most, last)
    below = tl.sum((keys < high[None, :]).to(tl.int32), 0)
    inside = (keys > low[None, :]) & (keys < high[None, :])
    total = tl.sum(tl.where(inside, tile, 0.0).to(tl.float64), 0)
    lows = tl.minimum(at_most, last + 1) - first
    highs = tl.where(high > low, last + 1 - below, 0)
    total += lows * _float(low).to(tl.float64) + highs * _float(high).to(tl.float64)
    return (total / (last - first + 1)).to(tl.float32)


@triton.jit
def mean_of_ranks(x, out, n, d, stride, first, last, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The mean of the values of these ranks."""
    tile, at, _ = _tile(x, n, d, stride, ROWS, BLOCK)
    keys = _turned(tile.to(tl.int32, bitcast=True))
    tl.store(out + at, _mean_of_ranks(tile, keys, first, last), mask=at < d)


@triton.jit
def mean_around_median(x, out, n, d, stride, count, unused, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The mean of the `count` values next to the median; those equally far share what is left."""
    tile, at, there = _tile(x, n, d, stride, ROWS, BLOCK)
    keys = _turned(tile.to(tl.int32, bitcast=True))
    middle = _mean_of_ranks(tile, keys, (n - 1) // 2, n // 2)
    away = tl.where(there, tl.abs(tile - middle[None, :]), float("inf"))
    furthest = _float(_of_rank(away.to(tl.int32, bitcast=True), count - 1))  # sizes are in order as they are
    inside, tied = there & (away < furthest[None, :]), there & (away == furthest[None, :])
    spare = count - tl.sum(inside.to(tl.int32), 0)
    ties = tl.maximum(tl.sum(tied.to(tl.int32), 0), 1)
    shared = tl.sum(tl.where(tied, tile, 0.0).to(tl.float64), 0) / ties
    total = tl.sum(tl.where(inside, tile, 0.0).to(tl.float64), 0) + spare * shared
    tl.store(out + at, (total / count).to(tl.float32), mask=at < d)
