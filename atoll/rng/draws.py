"""Draws with torch, on any device and under vmap."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from atoll.rng.keys import MASK, fold, threefry

BitSource = Callable[[Tensor, tuple[int, ...]], Tensor]


def bits(k: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Uniform integers of 32 bits, as int64."""
    n = math.prod(shape)
    i = torch.arange((n + 1) // 2, dtype=torch.int64, device=k.device)
    a, b = threefry(k[0], k[1], i, torch.zeros_like(i))
    return torch.stack([a, b], -1).reshape(-1)[:n].reshape(shape)


def uniform(k: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform numbers strictly between 0 and 1 (23 random bits in float32, 52 in float64)."""
    if dtype == torch.float64:
        words = bits(k, (*shape, 2))
        return (((words[..., 0] << 20) | (words[..., 1] >> 12)).double() + 0.5) * 2.0**-52
    # 23 bits, so that the half added to stay off 0 cannot round the largest up to 1
    return ((bits(k, shape) >> 9).to(dtype) + 0.5) * 2.0**-23


def normal(k: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers (Box and Muller)."""
    u = uniform(k, (2, *shape), dtype)
    return torch.sqrt(-2.0 * torch.log(u[0])) * torch.cos(2.0 * math.pi * u[1])


def normal_dp(k: Tensor, shape: tuple[int, ...], source: BitSource = bits) -> Tensor:
    """Standard normal numbers in float32 for privacy to rest on: up to 8.5 deviations out (both of a pair).

    A radius from 23 bits would end at 5.8 deviations, which an event of probability 1e-8 goes beyond. `source` may be a
    faster `bits`.
    """
    n = math.prod(shape)
    return normal_of_words(source(k, (3, (n + 1) // 2)), n).reshape(shape)


def normal_of_words(words: Tensor, n: int) -> Tensor:
    """The first n numbers made of 32-bit words (..., 3, half), both of a pair: a radius from two words, an angle."""
    high, low, turn = words.unbind(-2)
    u = (((high << 20) | (low >> 12)).double() + 0.5) * 2.0**-52
    size = torch.sqrt(-2.0 * torch.log(u)).float()
    angle = ((turn >> 9).float() + 0.5) * (2.0 * math.pi * 2.0**-23)
    return torch.cat([size * torch.cos(angle), size * torch.sin(angle)], -1)[..., :n]


def bernoulli(k: Tensor, p: float | Tensor, shape: tuple[int, ...]) -> Tensor:
    """True with probability `p`."""
    return uniform(k, shape) < p


def permutation(k: Tensor, n: int) -> Tensor:
    """The numbers 0..n-1 in random order."""
    words = bits(k, (n, 2))
    return torch.argsort((words[:, 0] << 31) | (words[:, 1] >> 1), stable=True)


def choice(k: Tensor, n: int, size: int) -> Tensor:
    """`size` different numbers out of 0..n-1, in random order. For a small share of a large n see `distinct`."""
    if not 0 <= size <= n:
        raise ValueError(f"cannot choose {size} different numbers out of {n}")
    return permutation(k, n)[:size]


def distinct(k: Tensor, n: int, size: int) -> Tensor:
    """`size` different numbers out of 0..n-1, in random order, at a cost that does not grow with n (not vmappable).

    The first different ones of a stream of uniform numbers: every ordered choice is equally likely.
    """
    if size * 4 > n:
        return choice(k, n, size)
    draws = size + size // 2 + 16
    while True:
        words = bits(k, (draws, 2))
        words = (words[:, 0] << 31) | (words[:, 1] >> 1)
        candidates = words[words <= (1 << 63) // n * n - 1] % n  # a last, incomplete n would favour small ones
        _, inverse = torch.unique(candidates, return_inverse=True)
        first = torch.full((int(inverse.max()) + 1,), draws).scatter_reduce(
            0, inverse, torch.arange(len(candidates)), reduce="amin"
        )
        if len(first) >= size:
            return candidates[first.sort().values[:size]]
        draws *= 2  # a draw is addressed by its counter, so the first ones stay what they were


def log_gamma(k: Tensor, alpha: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """The logarithm of Gamma(alpha, 1) numbers: small alphas underflow otherwise (Marsaglia and Tsang, 2000)."""
    shape = tuple(alpha.shape)
    a = alpha.to(dtype)
    boosted = torch.where(a < 1, a + 1, a)
    d = boosted - 1.0 / 3.0
    c = 1.0 / torch.sqrt(9.0 * d)
    log_draws = torch.log(d)
    done = torch.zeros(shape, dtype=torch.bool, device=k.device)
    # Each try fails with probability under 0.05; after 20 the chance of none is below 1e-26.
    for i in range(20):
        x = normal(fold(k, 2 * i), shape, dtype)
        u = uniform(fold(k, 2 * i + 1), shape, dtype)
        v = torch.clamp(1.0 + c * x, min=1e-30) ** 3
        good = (1.0 + c * x > 0) & (torch.log(u) < 0.5 * x * x + d - d * v + d * torch.log(v))
        log_draws = torch.where(good & ~done, torch.log(d) + torch.log(v), log_draws)
        done = done | good
    u = uniform(fold(k, 40), shape, dtype)
    return torch.where(a < 1, log_draws + torch.log(u) / a, log_draws)


def dirichlet(k: Tensor, alpha: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Dirichlet(alpha) shares along the last axis; sound for alphas down to 1e-3 and below."""
    return torch.softmax(log_gamma(k, alpha, dtype), -1)


def quick_bits(k: Tensor | tuple[Any, Any], at: Tensor, wide: int) -> Tensor:
    """32 cheap random bits, as int32, for each row number in `at` (B,) and each of `wide` columns: (B, wide).

    A finaliser over counters, twenty integer operations a word; nothing that privacy rests on may draw from it. A
    row does not depend on the rows beside it. The key may be two numbers: a constant tensor would be copied to the
    device.
    """
    row = _mixed(at.to(torch.int32) * _ODD + _signed(k[0]))
    other = _mixed(row ^ _signed(k[1]))  # two words for each row, or two rows could be one sequence, shifted
    column = torch.arange(wide, dtype=torch.int32, device=at.device) * _ODD
    return _mixed(_mixed(row[:, None] + column) + other[:, None])


def quick_words(k: Tensor, n: int) -> Tensor:
    """`n` of them in a row, for one key."""
    return quick_bits(k, torch.zeros(1, dtype=torch.int32, device=k.device), n)[0]


def quick_uniform(k: Tensor, n: int) -> Tensor:
    """Uniform numbers in [0, 1) from `quick_words`, in steps of 2^-24."""
    return ((quick_words(k, n) >> 8) & 0xFFFFFF).float() * 2.0**-24


def quick_normal(k: Tensor | tuple[Any, Any], at: Tensor, wide: int) -> Tensor:
    """Standard normal numbers from `quick_bits`, float32 (B, wide) (Box and Muller, both of a pair)."""
    half = (wide + 1) // 2
    u = (((quick_bits(k, at, 2 * half) >> 9) & 0x7FFFFF).float() + 0.5) * 2.0**-23
    size, angle = torch.sqrt(-2.0 * torch.log(u[:, :half])), 2.0 * math.pi * u[:, half:]
    return torch.cat([size * torch.cos(angle), size * torch.sin(angle)], 1)[:, :wide]


_ODD = 0x9E3779B1 - 2**32


def _mixed(x: Tensor) -> Tensor:
    """A bijection of 32-bit words in which every bit depends on every other ("lowbias32", C. Wellons, 2018)."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * (0x846CA68B - 2**32)
    return x ^ ((x >> 16) & 0xFFFF)


def _signed(word: Any) -> Any:
    """A 32-bit word, number or int64 tensor, as int32."""
    low = ((word & MASK) ^ 0x80000000) - 0x80000000
    return low.to(torch.int32) if isinstance(low, Tensor) else low
