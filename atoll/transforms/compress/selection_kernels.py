"""Triton kernels that find the largest entries: a guess from a sample, its candidates in order, the least, then places.

Only `selection` imports this, and only where Triton is there. Updates lie client after client, n numbers each. What is
known of a client is two integers: the least size that is chosen, and the place of the last entry of that size that is.
"""
# mypy: ignore-errors

import triton
import triton.language as tl

from atoll.rng.triton import quick_row, quick_word


@triton.jit
def _bits(value):
    """Of |value|: they are in order as whole numbers."""
    return value.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _size_bits(x, at, inside):
    """The bits of |x|; -1 outside."""
    return tl.where(inside, _bits(tl.load(x + at, mask=inside, other=0.0)), -1)


@triton.jit
def _sum(x, memory, part, at, inside, ADD: tl.constexpr):
    """x, and a part of what was held back before."""
    value = tl.load(x + at, mask=inside, other=0.0)
    if ADD:
        value += part * tl.load(memory + at, mask=inside, other=0.0)
    return value


@triton.jit
def _bound(bits, k, least, reached):
    """A bound that exactly k sizes reach, or the k-th size itself, from one that `reached` of them reach, k or more.

    Sizes thin out about exponentially, which says where to look; every third time in the middle, whatever they do.
    """
    beyond, above, tries = tl.minimum(tl.max(bits, 0), 0x7FFFFFFE) + 1, reached * 0, reached * 0
    while (beyond - least > 1) & (reached != k):
        span, count = beyond - least, reached.to(tl.float32)
        share = tl.log(count / k) / tl.log(count / tl.maximum(above.to(tl.float32), 0.5))
        likely = least + (span.to(tl.float32) * share).to(tl.int32)
        middle = tl.where(tries % 3 == 2, least + span // 2, tl.maximum(tl.minimum(likely, beyond - 1), least + 1))
        here = tl.sum((bits >= middle).to(tl.int32), 0)
        enough = here >= k
        reached, above = tl.where(enough, here, reached), tl.where(enough, above, here)
        least, beyond = tl.where(enough, middle, least), tl.where(enough, beyond, middle)
        tries += 1
    return least


@triton.jit
def guess_least(x, memory, part, guess, n, rank, stretch, ADD: tl.constexpr, BLOCK: tl.constexpr):
    """The size of this rank in a sample, one of every stretch: k or a few more are larger, nearly always."""
    client = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    row, other = quick_row(i * 0, i * 0, i * 0)
    at = i * stretch + (quick_word(row, other, i) >> 1).to(tl.int32) % stretch
    value = _sum(x + client * n, memory + client * n, part, at, at < n, ADD)
    tl.store(
        guess + client, _bound(tl.where(at < n, _bits(value), -1), rank, rank * 0, tl.sum((at < n).to(tl.int32), 0))
    )


@triton.jit
def mark_candidates(
    x, memory, part, full, guess, marks, counts, n, blocks, ADD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Which sizes of a block are no smaller than the guess, 32 in a word, and how many; `ADD`: the sums are kept."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = _sum(x + client * n, memory + client * n, part, at, inside, ADD)
    if ADD:
        tl.store(full + client * n + at, value, mask=inside)
    large = (inside & (_bits(value) >= tl.load(guess + client))).to(tl.int32)
    words = tl.sum(tl.reshape(large << (at % 32), (BLOCK // 32, 32)), 1)
    word = tl.program_id(0) * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    tl.store(marks + client * (blocks * (BLOCK // 32)) + word, words)
    tl.store(counts + client * blocks + tl.program_id(0), tl.sum(large, 0))


@triton.jit
def number_candidates(counts, found, blocks, BLOCK: tl.constexpr):
    """Counts of blocks become the number of candidates before each; and how many there are in all."""
    client = tl.program_id(0).to(tl.int64)
    before = 0
    for first in range(0, blocks, BLOCK):
        at = first + tl.arange(0, BLOCK)
        here = tl.load(counts + client * blocks + at, mask=at < blocks, other=0)
        tl.store(counts + client * blocks + at, before + tl.cumsum(here, 0) - here, mask=at < blocks)
        before += tl.sum(here, 0)
    tl.store(found + client, before)


@triton.jit
def gather_candidates(marks, counts, candidates, room, blocks, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    """The places of what is marked, in order, as far as there is room. A block has WORDS words."""
    client = tl.program_id(1).to(tl.int64)
    word = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = word < blocks * WORDS
    marked = tl.load(marks + client * (blocks * WORDS) + word, mask=inside, other=0)
    ones = marked - ((marked >> 1) & 0x55555555)
    ones = (ones & 0x33333333) + ((ones >> 2) & 0x33333333)
    ones = (((ones + (ones >> 4)) & 0x0F0F0F0F) * 0x01010101 >> 24) & 0x3F
    to = tl.load(counts + client * blocks + tl.program_id(0) * (BLOCK // WORDS)) + tl.cumsum(ones, 0) - ones
    for bit in range(32):
        here = inside & (((marked >> bit) & 1) > 0)
        tl.store(candidates + client * room + to, word * 32 + bit, mask=here & (to < room))
        to += here.to(tl.int32)


@triton.jit
def _numbered(bits, least, ties):
    """Which are chosen: above the least, or among the first `ties` equal to it; and the number of each. One scan.

    Of at most 2^15: both counts stand in one word.
    """
    tie, above = bits == least, bits > least
    counts = tl.cumsum(above.to(tl.int32) + (tie.to(tl.int32) << 16), 0)
    tied = (counts >> 16) & 0xFFFF
    taken = tie & (tied <= ties)
    to = (counts & 0xFFFF) + tl.minimum(tied, tl.maximum(ties, 0)) - 1
    return above | taken, taken, to


@triton.jit
def _write_known(known, mean, client, least, last, size):
    tl.store(known + 2 * client, least)
    tl.store(known + 2 * client + 1, last)
    tl.store(mean + client, size)


@triton.jit
def place_of_held(x, guess, found, candidates, places, known, mean, n, k, room, held, BLOCK: tl.constexpr):
    """`place_largest` where one program holds all candidates of a client, of which there are up to `held`."""
    client = tl.program_id(0).to(tl.int64)
    gathered = tl.load(found + client)
    if (gathered >= k) & (gathered <= held):
        i = tl.arange(0, BLOCK)
        inside = i < gathered
        at = tl.load(candidates + client * room + i, mask=inside, other=0)
        bits = _size_bits(x + client * n, at, inside)
        least = _bound(bits, k, tl.load(guess + client), gathered)
        chosen, taken, to = _numbered(bits, least, k - tl.sum((bits > least).to(tl.int32), 0))
        tl.store(places + client * k + to, at.to(tl.int64), mask=chosen)
        size = tl.sum(tl.where(chosen, bits.to(tl.float32, bitcast=True), 0.0), 0) / k
        _write_known(known, mean, client, least, tl.max(tl.where(taken, at, -1), 0), size)


@triton.jit
def _numbers(x, candidates, first, size, in_room, BLOCK: tl.constexpr):
    """Sizes and places of some candidates, or of some of all entries; and which of them there are."""
    at = first + tl.arange(0, BLOCK)
    inside = at < size
    if in_room > 0:
        at = tl.load(candidates + at, mask=inside, other=0)
    return _size_bits(x, at, inside), at, inside


@triton.jit
def _digit(x, candidates, size, in_room, prefix, rank, SHIFT: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One digit more of the size of this rank, and its rank among those that share all digits."""
    counted = tl.zeros((256,), tl.int32)
    for first in range(0, size, BLOCK):
        bits, _, inside = _numbers(x, candidates, first, size, in_room, BLOCK)
        same = inside & ((bits >> (SHIFT + WIDTH)) == prefix)
        counted += tl.histogram((bits >> SHIFT) & ((1 << WIDTH) - 1), 256, mask=same)
    digit = tl.arange(0, 256)
    above = tl.sum(counted, 0) - tl.cumsum(counted, 0)
    chosen = (above < rank) & (above + counted >= rank)
    longer = (prefix << WIDTH) | tl.sum(tl.where(chosen, digit, 0), 0)
    return longer, rank - tl.sum(tl.where(chosen, above, 0), 0)


@triton.jit
def place_largest(
    x, found, candidates, places, known, mean, n, k, room, held, BLOCK: tl.constexpr
):  # fmt: skip
    """The places of the k largest, in order; of equal ones the first. Also what is known, and the mean of their sizes.

    Among the candidates, digit by digit; among all, where there are fewer than k, or more than there is room. Nothing
    where `place_of_held`, which takes up to `held`, has done it.
    """
    client = tl.program_id(0).to(tl.int64)
    gathered = tl.load(found + client)
    if (gathered < k) | (gathered > held):
        in_room = ((gathered >= k) & (gathered <= room)).to(tl.int32)
        size = tl.where(in_room > 0, gathered, n)
        x, candidates = x + client * n, candidates + client * room
        least, ties = _digit(x, candidates, size, in_room, 0, k, 23, 8, BLOCK)
        least, ties = _digit(x, candidates, size, in_room, least, ties, 15, 8, BLOCK)
        least, ties = _digit(x, candidates, size, in_room, least, ties, 7, 8, BLOCK)
        least, ties = _digit(x, candidates, size, in_room, least, ties, 0, 7, BLOCK)
        before, tied, last, total = 0, 0, -1, 0.0
        for first in range(0, size, BLOCK):
            bits, at, _ = _numbers(x, candidates, first, size, in_room, BLOCK)
            chosen, taken, to = _numbered(bits, least, ties - tied)
            tl.store(places + client * k + before + to, at.to(tl.int64), mask=chosen)
            before += tl.sum(chosen.to(tl.int32), 0)
            tied += tl.sum((bits == least).to(tl.int32), 0)
            last = tl.maximum(last, tl.max(tl.where(taken, at, -1), 0))
            total += tl.sum(tl.where(chosen, bits.to(tl.float32, bitcast=True), 0.0), 0)
        _write_known(known, mean, client, least, last, total / k)


@triton.jit
def _split(value, chosen, size, arrives, SIGNS: tl.constexpr):
    """What is sent of some entries, and what is held back."""
    kept = value
    if SIGNS:
        kept = tl.where(value > 0, size, -size)
    kept = tl.where(chosen, kept, 0.0)
    return kept, value - kept * arrives


@triton.jit
def largest_of_few(
    x, memory, part, places, known, mean, arrives, sent, held, n, k,
    ADD: tl.constexpr, SPLIT: tl.constexpr, SIGNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """All at once, where one program holds all sizes of a client: places, mean size, what is sent and held back."""
    client = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < n
    value = _sum(x + client * n, memory + client * n, part, at, inside, ADD)
    bits = tl.where(inside, _bits(value), -1)
    all = tl.sum(inside.to(tl.int32), 0)
    least = _bound(bits, k, all * 0, all)
    ties = k - tl.sum((bits > least).to(tl.int32), 0)
    chosen, taken, to = _numbered(bits, least, ties)
    tl.store(places + client * k + to, at.to(tl.int64), mask=chosen)
    size = tl.sum(tl.where(chosen, bits.to(tl.float32, bitcast=True), 0.0), 0) / k
    _write_known(known, mean, client, least, tl.max(tl.where(taken, at, -1), 0), size)
    if SPLIT:
        kept, back = _split(value, chosen, size, tl.load(arrives + client), SIGNS)
        tl.store(sent + client * n + at, kept, mask=inside)
        tl.store(held + client * n + at, back, mask=inside)


@triton.jit
def split_chosen(x, known, mean, arrives, sent, held, n, SIGNS: tl.constexpr, BLOCK: tl.constexpr):
    """What is sent of an update and what is held back, in one pass."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + client * n + at, mask=inside, other=0.0)
    bits, least, last = _bits(value), tl.load(known + 2 * client), tl.load(known + 2 * client + 1)
    chosen = (bits > least) | ((bits == least) & (at <= last))
    kept, back = _split(value, chosen, tl.load(mean + client), tl.load(arrives + client), SIGNS)
    tl.store(sent + client * n + at, kept, mask=inside)
    tl.store(held + client * n + at, back, mask=inside)
