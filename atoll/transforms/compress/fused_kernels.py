"""Triton kernels of compressors: rounding, rotation, thin products, sketches, random places.

Only `fused` imports this, and only where Triton is there. Updates lie client after client, n numbers each.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from atoll.rng.triton import quick_row, quick_sign, quick_uniform

_FINE = tl.constexpr(5.9604644775390625e-08)


@triton.jit
def _row(keys, client):
    """Of the words that a client draws from its key."""
    return quick_row(tl.load(keys + 2 * client), tl.load(keys + 2 * client + 1), client * 0)


@triton.jit
def quantise(
    x, keys, low, step, unit, out, n,
    MOST: tl.constexpr, SIGNED: tl.constexpr, DECODE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Levels, rounded up or down at random, or what they stand for; signed ones count from 0 both ways."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, other = _row(keys, client)
    u = quick_uniform(row, other, at)
    value = tl.load(x + client * n + at, mask=at < n, other=0.0)
    first, wide, one = tl.load(low + client), tl.load(step + client), tl.load(unit + client)
    if SIGNED:
        level = tl.minimum(tl.floor(MOST * (tl.abs(value) / wide) + u), MOST)
        level = tl.where(value > 0, level, tl.where(value < 0, -level, 0.0))
        decoded, code = level * one, level + MOST
    else:
        level = tl.minimum(tl.maximum(tl.floor((value - first) / wide + u), 0.0), MOST)
        decoded, code = first + level * one, level
    if DECODE:
        tl.store(out + client * n + at, decoded, mask=at < n)
    else:
        tl.store(out + client * n + at, code.to(tl.int32), mask=at < n)


@triton.jit
def _hadamard(N: tl.constexpr, ORDER: tl.constexpr, PART: tl.constexpr):
    """Walsh and Hadamard's matrix of ORDER <= 64 rows, again and again along the diagonal of one of N rows.

    -1 where the numbers of row and column share an odd number of bits.
    """
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    shared = i & j & (ORDER - 1)
    shared = shared ^ (shared >> 4)
    shared = shared ^ (shared >> 2)
    shared = shared ^ (shared >> 1)
    entry = 1.0 - 2.0 * (shared & 1).to(tl.float32)
    return tl.where(i // ORDER == j // ORDER, entry, 0.0).to(PART)


@triton.jit
def _parts(x, PART: tl.constexpr):
    """A float32 as three bfloat16, which have its 24 bits; as itself, where there are none."""
    high = x.to(PART)
    rest = x - high.to(tl.float32)
    middle = rest.to(PART)
    return high, middle, (rest - middle.to(tl.float32)).to(PART)


@triton.jit
def _transformed(
    x, A: tl.constexpr, B: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """A block as a matrix (A, B), between two matrices of Hadamard's: the product with the one of LEFT x RIGHT rows."""
    matrix = _hadamard(A, LEFT, PART)
    high, middle, low = _parts(x, PART)
    x = tl.dot(matrix, high, tl.dot(matrix, middle, tl.dot(matrix, low)))
    matrix = _hadamard(B, RIGHT, PART)
    high, middle, low = _parts(x, PART)
    return tl.dot(high, matrix, tl.dot(middle, matrix, tl.dot(low, matrix)))


@triton.jit
def rotate(
    x, keys, out, size_in, size_out,
    SCALE: tl.constexpr, BACK: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """One block: signs at random, then the matrix; or back: the matrix, then the signs."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * (A * B) + tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    row, other = _row(keys, client)
    signs = quick_sign(row, other, at)
    block = tl.load(x + client * size_in + at, mask=at < size_in, other=0.0)
    if BACK:
        block = _transformed(block, A, B, LEFT, RIGHT, PART) * SCALE * signs
    else:
        block = _transformed(block * signs, A, B, LEFT, RIGHT, PART) * SCALE
    tl.store(out + client * size_out + at, block, mask=at < size_out)


@triton.jit
def drive(
    x, keys, out, n,
    SCALE: tl.constexpr, UNBIASED: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """What arrives of one block: rotated, the signs of its coordinates times one size, rotated back."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * (A * B) + tl.arange(0, A)[:, None] * B + tl.arange(0, B)[None, :]
    row, other = _row(keys, client)
    signs = quick_sign(row, other, at)
    block = tl.load(x + client * n + at, mask=at < n, other=0.0)
    block = _transformed(block * signs, A, B, LEFT, RIGHT, PART) * SCALE
    total = tl.sum(tl.sum(tl.abs(block), 1), 0)
    if UNBIASED:
        size = tl.sum(tl.sum(block * block, 1), 0) / tl.maximum(total, 1.2e-38)
    else:
        size = total / (LEFT * RIGHT)
    block = _transformed(tl.where(block > 0, size, -size), A, B, LEFT, RIGHT, PART) * SCALE * signs
    tl.store(out + client * n + at, block, mask=at < n)


@triton.jit
def thin_product(
    matrix, memory, part, thin, out, full, rows, columns, by_row, by_column,
    RANK: tl.constexpr, WIDE: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    """(rows, columns) times (columns, RANK), read by these strides: of a matrix or of its transpose.

    ADDS: of matrix + part * memory, which is written to `full`.
    """
    client = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    r = tl.arange(0, WIDE)
    total = tl.zeros((BM, WIDE), tl.float32)
    for first in range(0, columns, BK):
        j = first + tl.arange(0, BK)
        inside = (i < rows)[:, None] & (j < columns)[None, :]
        at = client * rows * columns + i[:, None] * by_row + j[None, :] * by_column
        tile = tl.load(matrix + at, mask=inside, other=0.0)
        if ADDS:
            tile += part * tl.load(memory + at, mask=inside, other=0.0)
            tl.store(full + at, tile, mask=inside)
        there = (j < columns)[:, None] & (r < RANK)[None, :]
        factor = tl.load(thin + (client * columns + j[:, None]) * RANK + r[None, :], mask=there, other=0.0)
        total = tl.dot(tile, factor, total, input_precision="ieee")
    to = out + (client * rows + i[:, None]) * RANK + r[None, :]
    tl.store(to, total, mask=(i < rows)[:, None] & (r < RANK)[None, :])


@triton.jit
def thin_outer(
    left, right, out, full, arrives, rest, rows, columns,
    RANK: tl.constexpr, RESTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """(rows, RANK) times the transpose of (columns, RANK). RESTS: and `full` without it, of clients that arrive."""
    client = tl.program_id(2).to(tl.int64)
    i = tl.program_id(1) * BM + tl.arange(0, BM)
    j = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for r in tl.static_range(RANK):
        a = tl.load(left + (client * rows + i) * RANK + r, mask=i < rows, other=0.0)
        b = tl.load(right + (client * columns + j) * RANK + r, mask=j < columns, other=0.0)
        total += a[:, None] * b[None, :]
    at = (client * rows + i[:, None]) * columns + j[None, :]
    inside = (i < rows)[:, None] & (j < columns)[None, :]
    tl.store(out + at, total, mask=inside)
    if RESTS:
        tl.store(rest + at, tl.load(full + at, mask=inside) - total * tl.load(arrives + client), mask=inside)


@triton.jit
def orthonormal(matrix, out, rows, RANK: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """The columns of one matrix by Gram and Schmidt, twice each; one in the span of those before it becomes zero."""
    client = tl.program_id(0).to(tl.int64)
    i, r = tl.arange(0, BLOCK)[:, None], tl.arange(0, WIDE)[None, :]
    inside = (i < rows) & (r < RANK)
    x = tl.load(matrix + client * rows * RANK + i * RANK + r, mask=inside, other=0.0)
    done = tl.zeros((BLOCK, WIDE), tl.float32)
    for c in range(RANK):
        column = tl.sum(tl.where(r == c, x, 0.0), 1)
        whole = tl.sqrt(tl.sum(column * column, 0))
        for _ in range(2):
            shares = tl.sum(done * column[:, None], 0)
            column -= tl.sum(done * shares[None, :], 1)
        length = tl.sqrt(tl.sum(column * column, 0))
        unit = tl.where(length > 1e-6 * whole, column / tl.maximum(length, 1.2e-38), 0.0)
        done = tl.where(r == c, unit[:, None], done)
    tl.store(out + client * rows * RANK + i * RANK + r, done, mask=inside)


@triton.jit
def sketch_table(
    x, k0, k1, offsets, out, n, blocks, columns, clients,
    ROWS: tl.constexpr, CLIENTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Buckets of one row of the tables of some clients: every block of an update, signed, turned by its offset."""
    bucket = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    hashed = tl.program_id(1)
    client = (tl.program_id(2) * CLIENTS + tl.arange(0, CLIENTS)).to(tl.int64)
    row, other = quick_row(hashed * 0 + k0, hashed * 0 + k1, hashed)
    total = tl.zeros((CLIENTS, BLOCK), tl.float32)
    real = (client < clients)[:, None] & (bucket < columns)[None, :]
    for block in range(0, blocks):
        turned = bucket + columns - tl.load(offsets + hashed * blocks + block)
        at = block * columns + tl.where(turned >= columns, turned - columns, turned)
        signs = quick_sign(row, other, blocks + at)
        value = tl.load(x + client[:, None] * n + at[None, :], mask=real & (at < n)[None, :], other=0.0)
        total += value * signs[None, :]
    to = out + (client[:, None] * ROWS + hashed) * columns + bucket[None, :]
    tl.store(to, total, mask=real)


@triton.jit
def sketch_read(table, k0, k1, offsets, out, n, blocks, columns, BLOCK: tl.constexpr):
    """What one row of a table says of every entry."""
    hashed = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, other = quick_row(hashed * 0 + k0, hashed * 0 + k1, hashed)
    block = at // columns
    bucket = (at - block * columns + tl.load(offsets + hashed * blocks + block, mask=at < n, other=0)) % columns
    value = tl.load(table + hashed * columns + bucket, mask=at < n, other=0.0)
    to = out + hashed.to(tl.int64) * n + at
    tl.store(to, value * quick_sign(row, other, blocks + at), mask=at < n)


@triton.jit
def random_places(keys, places, n, k, BLOCK: tl.constexpr):
    """One place of each of k stretches, from a random start on: `sparse.random_places`."""
    client = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row, other = _row(keys, client)
    u = quick_uniform(row, other, i).to(tl.float64) + quick_uniform(row, other, k + 1 + i).to(tl.float64) * _FINE
    last = i * 0 + k
    v = quick_uniform(row, other, last).to(tl.float64)
    v += quick_uniform(row, other, k + 1 + last).to(tl.float64) * _FINE
    first, next = i.to(tl.int64) * n // k, (i + 1).to(tl.int64) * n // k
    place = first + (u * (next - first).to(tl.float64)).to(tl.int64) + (v * n).to(tl.int64)
    tl.store(places + client * k + i, place % n, mask=i < k)
