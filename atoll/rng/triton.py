"""Threefry as Triton kernels. Only `gpu` imports this, and only where Triton is there."""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _mix(x0, x1, R: tl.constexpr):
    x0 = x0 + x1
    return x0, ((x1 << R) | (x1 >> (32 - R))) ^ x0


@triton.jit
def _threefry(i, high, k0, k1):
    """Two words for each pair of numbers: Threefry-2x32 with 20 rounds; `rng.bits` has 0 for the second."""
    k2 = k0 ^ k1 ^ 0x1BD11BDA
    x0, x1 = i.to(tl.uint32) + k0, (i * 0 + high).to(tl.uint32) + k1
    for n in tl.static_range(5):
        if n % 2 == 0:
            x0, x1 = _mix(x0, x1, 13)
            x0, x1 = _mix(x0, x1, 15)
            x0, x1 = _mix(x0, x1, 26)
            x0, x1 = _mix(x0, x1, 6)
        else:
            x0, x1 = _mix(x0, x1, 17)
            x0, x1 = _mix(x0, x1, 29)
            x0, x1 = _mix(x0, x1, 16)
            x0, x1 = _mix(x0, x1, 24)
        first = k0 if (n + 1) % 3 == 0 else (k1 if (n + 1) % 3 == 1 else k2)
        second = k0 if (n + 2) % 3 == 0 else (k1 if (n + 2) % 3 == 1 else k2)
        x0, x1 = x0 + first, x1 + second + (n + 1)
    return x0, x1


@triton.jit
def threefry_words(key, out, blocks, BLOCK: tl.constexpr):
    """The words of `rng.bits`, as int64."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x0, x1 = _threefry(i, 0, tl.load(key).to(tl.uint32), tl.load(key + 1).to(tl.uint32))
    real = i < blocks
    tl.store(out + 2 * i, x0.to(tl.int64), mask=real)
    tl.store(out + 2 * i + 1, x1.to(tl.int64), mask=real)


@triton.jit
def fold_keys(keys, out, low, high, n, BLOCK: tl.constexpr):
    """`rng.fold` of n keys with one number, in two halves of 32 bits."""
    i = tl.arange(0, BLOCK) + tl.program_id(0) * BLOCK
    real = i < n
    k0, k1 = (tl.load(keys + 2 * i, mask=real, other=0), tl.load(keys + 2 * i + 1, mask=real, other=0))
    x0, x1 = _threefry(i * 0 + low, high, k0.to(tl.uint32), k1.to(tl.uint32))
    tl.store(out + 2 * i, x0.to(tl.int64), mask=real)
    tl.store(out + 2 * i + 1, x1.to(tl.int64), mask=real)


@triton.jit
def _mixed(x):
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def quick_row(k0, k1, at):
    """The two words that row `at` of `rng.quick_bits` is made of."""
    row = _mixed(at.to(tl.uint32) * 0x9E3779B1 + k0.to(tl.uint32))
    return row, _mixed(row ^ k1.to(tl.uint32))


@triton.jit
def quick_word(row, other, column):
    """The words of these columns of a row."""
    return _mixed(_mixed(row + column.to(tl.uint32) * 0x9E3779B1) + other)


@triton.jit
def quick_uniform(row, other, column):
    """`rng.quick_uniform` at these columns."""
    return (quick_word(row, other, column) >> 8).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def quick_sign(row, other, column):
    """1 or -1 at these columns, by the last bit."""
    return 1.0 - 2.0 * (quick_word(row, other, column) & 1).to(tl.float32)


@triton.jit
def _word(at, k0, k1):
    """The word at this place of `rng.bits`."""
    x0, x1 = _threefry(at // 2, 0, k0, k1)
    return tl.where(at % 2 == 0, x0, x1)


@triton.jit
def normal_dp(key, out, half, n, BLOCK: tl.constexpr):
    """The numbers of `rng.normal_dp`: a radius from 52 bits in float64, an angle from 23."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k0, k1 = tl.load(key).to(tl.uint32), tl.load(key + 1).to(tl.uint32)
    high, low = _word(i, k0, k1).to(tl.int64), _word(half + i, k0, k1).to(tl.int64)
    u = (((high << 20) | (low >> 12)).to(tl.float64) + 0.5) * 2.220446049250313e-16
    size = tl.sqrt(-2.0 * tl.log(u)).to(tl.float32)
    angle = ((_word(2 * half + i, k0, k1) >> 9).to(tl.float32) + 0.5) * 7.490140565847857e-07
    tl.store(out + i, size * tl.cos(angle), mask=i < half)
    tl.store(out + half + i, size * tl.sin(angle), mask=half + i < n)
