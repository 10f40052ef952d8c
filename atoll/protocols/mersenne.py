"""Arithmetic modulo a Mersenne prime, 2^31 - 1 or 2^61 - 1, on arrays of 64-bit words.

Products of matrices are exact in float64: numbers are cut into limbs so short that sums of their products stay below
2^53, which a processor's fast matrix product then adds without error. A factor 2^k is a rotation of the word.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoll.errors import ConfigError
from atoll.protocols.masks import mask

Elements: TypeAlias = NDArray[np.uint64]

_EXACT_BITS = 53  # of float64
_COLUMNS = 1 << 13  # of a product at a time, so that limbs stay small


@dataclass(frozen=True)
class MersenneField:
    """Whole numbers modulo 2^exponent - 1.

    >>> MersenneField(31).multiply(np.array([1 << 30], np.uint64), np.array([4], np.uint64))
    array([2], dtype=uint64)
    """

    exponent: int

    @cached_property
    def prime(self) -> int:
        return (1 << self.exponent) - 1

    @cached_property
    def limbs(self) -> int:
        return 2 if self.exponent <= 31 else 3

    @cached_property
    def limb_bits(self) -> int:
        return -(-self.exponent // self.limbs)

    @property
    def most_terms(self) -> int:
        """Products that one entry of a matrix product may have, all places of one weight together."""
        return (1 << (_EXACT_BITS - 2 * self.limb_bits)) // self.limbs

    def reduce(self, x: Elements) -> Elements:
        """Words below 2^(2 exponent - 1), reduced: 2^exponent is 1."""
        p = np.uint64(self.prime)
        folded = (x & p) + (x >> np.uint64(self.exponent))
        return np.minimum(folded, folded - p)  # below zero wraps around to the greatest words

    def add(self, a: Elements, b: Elements) -> Elements:
        return self.reduce(a + b)

    def subtract(self, a: Elements, b: Elements) -> Elements:
        return self.reduce(a + (np.uint64(self.prime) - b))

    def multiply(self, a: Elements, b: Elements) -> Elements:
        """Element by element."""
        width, low = np.uint64(self.limb_bits), np.uint64((1 << self.limb_bits) - 1)
        total = np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b)), np.uint64)
        for place in range(self.limbs):
            limb = (b >> np.uint64(place * int(width))) & low
            for other in range(self.limbs):
                product = ((a >> np.uint64(other * int(width))) & low) * limb
                total = self.add(total, self._shifted(self.reduce(product), (place + other) * self.limb_bits))
        return total

    def matmul(self, a: Elements, b: Elements) -> Elements:
        """(m, k) by (k, n)."""
        if a.shape[1] > self.most_terms:
            raise ConfigError(f"field: {a.shape[1]} terms in a product. Up to {self.most_terms} are exact: use fewer.")
        left, total = self._limbs(a), np.empty((len(a), b.shape[1]), np.uint64)
        for begin in range(0, b.shape[1], _COLUMNS):
            right = self._limbs(b[:, begin : begin + _COLUMNS])
            total[:, begin : begin + _COLUMNS] = self._products(left, right)
        return total

    def mask(self, seed: bytes, size: int) -> Elements:
        """Uniform elements from a seed: words of `exponent` bits, drawn again where all bits are ones."""
        words, more = mask(seed, size, self.exponent), 0
        elements: Elements = (words & words.dtype.type(self.prime)).astype(np.uint64)
        while len(wrong := np.flatnonzero(elements == np.uint64(self.prime))):
            more += len(wrong)  # the stream's next words, in order
            fresh = mask(seed, size + more, self.exponent)[-len(wrong) :]
            elements[wrong] = fresh & fresh.dtype.type(self.prime)
        return elements

    def inverses(self, most: int) -> Elements:
        """Of 1 to `most`; the entry 0 is 0."""
        table = [0, 1]
        for i in range(2, most + 1):
            table.append(-(self.prime // i) * table[self.prime % i] % self.prime)
        return np.array(table[: most + 1], np.uint64)

    def _limbs(self, x: Elements) -> list[NDArray[np.float64]]:
        low = np.uint64((1 << self.limb_bits) - 1)
        return [((x >> np.uint64(i * self.limb_bits)) & low).astype(np.float64) for i in range(self.limbs)]

    def _products(self, left: list[NDArray[np.float64]], right: list[NDArray[np.float64]]) -> Elements:
        total = np.zeros((len(left[0]), right[0].shape[1]), np.uint64)
        for place in range(2 * self.limbs - 1):
            pairs = [(i, place - i) for i in range(self.limbs) if 0 <= place - i < self.limbs]
            exact = sum(left[i] @ right[j] for i, j in pairs)
            here = self.reduce(np.asarray(exact).astype(np.uint64))
            total = self.add(total, self._shifted(here, place * self.limb_bits))
        return total

    def _shifted(self, x: Elements, by: int) -> Elements:
        """x 2^by for reduced x: a rotation among `exponent` bits."""
        by %= self.exponent
        if by == 0:
            return x
        high, p = np.uint64(self.exponent - by), np.uint64(self.prime)
        return self.reduce(((x << np.uint64(by)) & p) | (x >> high))
