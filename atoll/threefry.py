"""Keyed random words without torch: what `rng` rests on, and all that a virtual clock needs.

The generator is Threefry-2x32 with 20 rounds (Salmon et al., Parallel random numbers: as easy as 1, 2, 3; 2011).
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

_SHIFTS = [[(np.uint32(r), np.uint32(32 - r)) for r in rs] for rs in ((13, 15, 26, 6), (17, 29, 16, 24))]


def key_words(path: tuple[int | str, ...]) -> Words:
    """The two words of the key that a path of names and numbers stands for."""
    return np.frombuffer(key_digest(path), ">u4").astype(np.uint32)


def key_digest(path: tuple[int | str, ...]) -> bytes:
    """The same as eight bytes, the first word first."""
    return hashlib.blake2b(repr(path).encode(), digest_size=8).digest()


def uniform_at(path: tuple[int | str, ...], ids: NDArray[np.int64], place: int) -> NDArray[np.float64]:
    """A number in (0, 1) for each id, addressed by (path, id, place): nobody else's draw moves it."""
    k = key_words(path)
    high, low = block(k[:1], k[1:], ids.astype(np.uint32), np.full(len(ids), place, np.uint32))
    words = high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def block(k0: Words, k1: Words, x0: Words, x1: Words) -> tuple[Words, Words]:
    """The block function for arrays of 32-bit words, which wrap by themselves; in place, a third of the time."""
    ks = (k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    a, b = x0 + k0, x1 + k1
    spare = np.empty_like(b)
    for i in range(5):
        for left, right in _SHIFTS[i % 2]:
            np.add(a, b, out=a)
            np.left_shift(b, left, out=spare)
            np.right_shift(b, right, out=b)
            np.bitwise_or(b, spare, out=b)
            np.bitwise_xor(b, a, out=b)
        np.add(a, ks[(i + 1) % 3], out=a)
        np.add(b, ks[(i + 2) % 3] + np.uint32(i + 1), out=b)
    return a, b
