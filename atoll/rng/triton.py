"""Threefry as Triton kernels. Only `gpu` imports this, and only where Triton is there."""
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _mix(x0, x1, R: tl.constexpr):
    x0 = x0 + x1
    return x0, ((x1 << R) | (x1 >> (32 - R))) ^ x0


@triton.jit
def _threefry(i, k0, k1):
    """Two words for each block number: Threefry-2x32 with 20 rounds of the number and 0, as `rng.bits` has them."""
    k2 = k0 ^ k1 ^ 0x1BD11BDA
    x0, x1 = i.to(tl.uint32) + k0, i.to(tl.uint32) * 0 + k1
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
    x0, x1 = _threefry(i, tl.load(key).to(tl.uint32), tl.load(key + 1).to(tl.uint32))
    real = i < blocks
    tl.store(out + 2 * i, x0.to(tl.int64), mask=real)
    tl.store(out + 2 * i + 1, x1.to(tl.int64), mask=real)


@triton.jit
def _word(at, k0, k1):
    """The word at this place of `rng.bits`."""
    x0, x1 = _threefry(at // 2, k0, k1)
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
