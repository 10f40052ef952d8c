"""Triton kernels that find the largest entries: a guess from a sample, digits of the candidates, then places.

Only `fused` imports this, and only where Triton is there. Updates lie client after client, n numbers each. A client's
state is three integers: the digits that are known, the rank that is looked for among those that share them, the guess.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from atoll.rng.triton import quick_row, quick_word


@triton.jit
def _size_bits(x, at, inside):
    """The bits of |x|, which are in order as whole numbers; -1 outside."""
    bits = tl.load(x + at, mask=inside, other=0.0).to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.where(inside, bits, -1)


@triton.jit
def _least_of_largest(bits, k):
    """The size of rank k, bit by bit."""
    least = 0
    for i in range(31):
        more = least | (1 << (30 - i))
        least = tl.where(tl.sum((bits >= more).to(tl.int32), 0) >= k, more, least)
    return least


@triton.jit
def guess_least(x, state, n, k, rank, stretch, BLOCK: tl.constexpr):
    """The size of this rank in a sample, one of every stretch: k or a few more are larger, nearly always.

    The state begins with no digit known, and the rank that is looked for; the guess stands behind it.
    """
    client = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    row, other = quick_row(i * 0, i * 0, i * 0)
    at = i * stretch + (quick_word(row, other, i) >> 1).to(tl.int32) % stretch
    least = _least_of_largest(_size_bits(x + client * n, at, at < n), rank)
    tl.store(state + 3 * client, 0)
    tl.store(state + 3 * client + 1, k)
    tl.store(state + 3 * client + 2, least)


@triton.jit
def gather_candidates(x, state, candidates, found, n, room, BLOCK: tl.constexpr):
    """The sizes from the guess on, in any order; `found` counts them, in the room or not."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bits = _size_bits(x + client * n, at, at < n)
    large = (bits >= tl.load(state + 3 * client + 2)).to(tl.int32)
    count = tl.sum(large, 0)
    if count > 0:
        before = tl.atomic_add(found + client, count)
        to = before + tl.cumsum(large, 0) - 1
        tl.store(candidates + client * room + to, bits, mask=(large > 0) & (to < room))


@triton.jit
def count_digits(
    x, candidates, found, state, counts, n, k, room, each,
    SHIFT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """How often each digit occurs among sizes whose higher digits are those of the state.

    Of the candidates; of all sizes, where there are fewer candidates than are looked for, or more than there is room.
    """
    client = tl.program_id(1).to(tl.int64)
    prefix, gathered = tl.load(state + 3 * client), tl.load(found + client)
    in_room = ((gathered >= k) & (gathered <= room)).to(tl.int32)
    size = tl.where(in_room > 0, gathered, n)
    start = tl.program_id(0) * each
    counted = tl.zeros((256,), tl.int32)
    for first in range(start, tl.minimum(start + each, size), BLOCK):
        at = first + tl.arange(0, BLOCK)
        inside = at < size
        if in_room > 0:
            bits = tl.load(candidates + client * room + at, mask=inside, other=-1)
        else:
            bits = _size_bits(x + client * n, at, inside)
        same = inside & ((bits >> (SHIFT + WIDTH)) == prefix)
        counted += tl.histogram((bits >> SHIFT) & ((1 << WIDTH) - 1), 256, mask=same)
    tl.atomic_add(counts + client * 256 + tl.arange(0, 256), counted, mask=counted > 0)


@triton.jit
def choose_digit(state, counts, WIDTH: tl.constexpr):
    """The digit of the size of rank `state[1]`; and its rank among those that share it."""
    client = tl.program_id(0).to(tl.int64)
    digit = tl.arange(0, 256)
    here = tl.load(counts + client * 256 + digit)
    prefix, rank = tl.load(state + 3 * client), tl.load(state + 3 * client + 1)
    above = tl.sum(here, 0) - tl.cumsum(here, 0)
    chosen = (above < rank) & (above + here >= rank)
    tl.store(state + 3 * client, (prefix << WIDTH) | tl.sum(tl.where(chosen, digit, 0), 0))
    tl.store(state + 3 * client + 1, rank - tl.sum(tl.where(chosen, above, 0), 0))
    tl.store(counts + client * 256 + digit, digit * 0)


@triton.jit
def count_chosen(x, state, larger, equal, n, blocks, BLOCK: tl.constexpr):
    """How many sizes of a block are above the one of the state, and how many are the same."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bits = _size_bits(x + client * n, at, at < n)
    least = tl.load(state + 3 * client)
    tl.store(larger + client * blocks + tl.program_id(0), tl.sum((bits > least).to(tl.int32), 0))
    tl.store(equal + client * blocks + tl.program_id(0), tl.sum((bits == least).to(tl.int32), 0))


@triton.jit
def place_chosen(x, state, larger, equal, places, n, k, blocks, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """The places of all that are above the size of the state, and of the first ones that are equal to it, in order."""
    client = tl.program_id(1).to(tl.int64)
    least, ties = tl.load(state + 3 * client), tl.load(state + 3 * client + 1)
    block = tl.arange(0, BLOCKS)
    earlier = block < tl.program_id(0)
    above = tl.sum(tl.load(larger + client * blocks + block, mask=earlier, other=0), 0)
    same = tl.sum(tl.load(equal + client * blocks + block, mask=earlier, other=0), 0)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bits = _size_bits(x + client * n, at, at < n)
    tie = (bits == least).to(tl.int32)
    chosen = (bits > least) | ((tie > 0) & (same + tl.cumsum(tie, 0) <= ties))
    to = above + tl.minimum(same, ties) + tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(places + client * k + to, at.to(tl.int64), mask=chosen)


@triton.jit
def largest_of_few(x, places, n, k, BLOCK: tl.constexpr):
    """The same where one program holds all sizes of a client: the least of the k largest, bit by bit."""
    client = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    bits = _size_bits(x + client * n, at, at < n)
    least = _least_of_largest(bits, k)
    ties = k - tl.sum((bits > least).to(tl.int32), 0)
    tie = (bits == least).to(tl.int32)
    chosen = (bits > least) | ((tie > 0) & (tl.cumsum(tie, 0) <= ties))
    tl.store(places + client * k + tl.cumsum(chosen.to(tl.int32), 0) - 1, at.to(tl.int64), mask=chosen)
