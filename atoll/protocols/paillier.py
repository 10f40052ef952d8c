"""Paillier's cryptosystem on GMP: E(m) E(m') = E(m + m') modulo n^2 (Paillier, 1999).

E(m) = (1 + m n) r^n mod n^2. Two ways to draw r^n:

- as published: r uniform modulo n, an exponent of as many bits as the key;
- short exponents (Damgård, Jurik and Nielsen, 2010): (h^n)^a for a random a of 400 bits, where h = -x^2 mod n is part
  of the key. h^n is fixed, so its powers are multiplied from a table. That a power with a short exponent looks like
  one with a long exponent is an assumption more (DJN take half the key's bits; of 400, a search for a costs 2^200).

n is a product of two primes, or of three, as RFC 8017 (section 3) allows for RSA. Decryption takes a power modulo the
square of each prime: three of 683 bits take 3/2 (2/3)^3 = 0.44 times as long as two of 1,024. Sieves find factors of n
by the length of n, which is the same; elliptic curves by the length of the prime, and 683 bits cost them about 2^110
steps, each on numbers of 2,048 bits. That residues are hidden is assumed of such an n (NIST and ISO 18033-6 have two
primes). There h = x^2: a square is blinded under the same assumption, and -1 would tell if a is odd.

Secret exponents go through GMP's constant-time power (`powmod_sec`); look-ups in the table do not hide from whoever
shares the cache of the machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

from atoll.errors import ProtocolError
from atoll.protocols.extra import extra
from atoll.protocols.secure_aggregation import RandomBytes

SHORT_BITS = 400
_SLACK_BYTES = 16  # drawn beyond the range, so that a remainder is uniform to 2^-128
_TESTS = 40  # rounds of Miller and Rabin


def gmp() -> Any:
    return extra("gmpy2", "paillier:")


@dataclass(frozen=True)
class PaillierPublicKey:
    """n, and h^n mod n^2 where exponents are short. Its owner's n is not proved to be a product of two primes."""

    n: int
    hn: int | None = None

    @cached_property
    def square(self) -> int:
        return self.n * self.n

    @property
    def bits(self) -> int:
        return int(self.n).bit_length()

    @property
    def ciphertext_bytes(self) -> int:
        return -(-2 * self.bits // 8)

    def encrypt(self, plaintexts: Sequence[int], random: RandomBytes) -> list[int]:
        """One ciphertext for each integer from 0 to n - 1."""
        blind = self._long() if self.hn is None else self._short(len(plaintexts))
        return [(1 + m * self.n) * blind(random) % self.square for m in plaintexts]

    def add(self, total: Sequence[int], other: Sequence[int]) -> list[int]:
        """Ciphertexts of the sums."""
        square = self.square
        return [a * b % square for a, b in zip(total, other, strict=True)]

    def check(self, ciphertexts: Sequence[int], whose: str) -> None:
        """A ProtocolError where one is no ciphertext of this key: out of range, or not invertible."""
        product = gmp().mpz(1)
        for i, c in enumerate(ciphertexts):
            if not 0 < c < self.square:
                raise ProtocolError(f"{whose}: ciphertext {i} is not between 1 and n^2 - 1. It is of another key.")
            product = product * c % self.n
        if gmp().gcd(product, self.n) != 1:
            raise ProtocolError(f"{whose}: a ciphertext shares a factor with n. It was not made by encryption.")

    def combine(self, partials: Sequence[Sequence[int]]) -> list[int]:
        """Plaintexts from the partial decryptions under every share of the key: c^(d_1) c^(d_2) ... = 1 + m n."""
        product = list(partials[0])
        for powers in partials[1:]:
            product = self.add(product, powers)
        if any(u % self.n != 1 for u in product):
            raise ProtocolError("paillier: the shares do not decrypt together. One is missing, or was not used.")
        return [(u - 1) // self.n for u in product]

    def _long(self) -> Any:
        powmod, size = gmp().powmod, -(-self.bits // 8) + _SLACK_BYTES

        def blind(random: RandomBytes) -> int:
            r = gmp().mpz.from_bytes(random(size), "little") % self.n
            return powmod(r, self.n, self.square) if gmp().gcd(r, self.n) == 1 else blind(random)

        return blind

    def _short(self, powers: int) -> Any:
        window = min(range(1, 9), key=lambda w: (2**w + powers) / w)  # multiplications for table and powers
        table, square, mask = _table(self.hn, self.square, window), self.square, (1 << window) - 1

        def blind(random: RandomBytes) -> int:
            exponent, power = int.from_bytes(random(SHORT_BITS // 8), "little"), gmp().mpz(1)
            for row in table:
                power = power * row[exponent & mask] % square
                exponent >>= window
            return power  # type: ignore[no-any-return]

        return blind


@dataclass(frozen=True)
class PaillierPrivateKey:
    """The prime factors of n. Decryption by the Chinese remainder theorem: modulo the square of each."""

    primes: tuple[int, ...] = field(repr=False)

    @classmethod
    def draw(cls, bits: int, random: RandomBytes, primes: int = 2) -> PaillierPrivateKey:
        """Primes 3 modulo 4 of one length (or one bit less), gcd(p - 1, q - 1) = 2 for each pair, n of `bits` bits."""
        lengths = [(bits + i) // primes for i in reversed(range(primes))]
        drawn = cls(tuple(_prime(length, random) for length in lengths))
        return drawn if drawn._is_valid(bits) else cls.draw(bits, random, primes)

    def _is_valid(self, bits: int) -> bool:
        pairs = all(gmp().gcd(p - 1, q - 1) == 2 for p, q in combinations(self.primes, 2))
        coprime = gmp().gcd(self.n, math.prod(p - 1 for p in self.primes)) == 1
        return pairs and coprime and len(set(self.primes)) == len(self.primes) and self.n.bit_length() == bits

    @cached_property
    def n(self) -> int:
        return math.prod(self.primes)

    @property
    def order(self) -> int:
        """lcm(p - 1, q - 1, ...): c^order is free of what blinds."""
        return math.lcm(*(int(p) - 1 for p in self.primes))

    def public(self, random: RandomBytes | None = None) -> PaillierPublicKey:
        """With `random` one for short exponents."""
        if random is None:
            return PaillierPublicKey(self.n)
        x = gmp().mpz.from_bytes(random(-(-int(self.n).bit_length() // 8) + _SLACK_BYTES), "little") % self.n
        if gmp().gcd(x, self.n) != 1:
            return self.public(random)
        h = (-x * x if len(self.primes) == 2 else x * x) % self.n
        return PaillierPublicKey(self.n, gmp().powmod(h, self.n, self.n * self.n))

    def decrypt(self, ciphertexts: Sequence[int]) -> list[int]:
        residues = [_Residue(p, self.n) for p in self.primes]
        return [sum(residue.term(c) for residue in residues) % self.n for c in ciphertexts]

    def split(self, shares: int, random: RandomBytes) -> list[int]:
        """d as a sum of shares: d = 0 modulo l = order, d = 1 modulo n, so c^d = 1 + m n. Shares modulo n l."""
        whole = self.order * int(gmp().invert(self.order, self.n))
        modulus = int(self.n) * self.order
        size = -(-modulus.bit_length() // 8) + _SLACK_BYTES
        drawn = [int.from_bytes(random(size), "little") % modulus for _ in range(shares - 1)]
        return [*drawn, (whole - sum(drawn)) % modulus]


class _Residue:
    """Decryption modulo one prime: m = L(c^(p-1)) / L((1 + n)^(p-1)) modulo p, L(x) = (x mod p^2 - 1) / p.

    Its term of m modulo n is m (n/p) ((n/p)^-1 mod p).
    """

    def __init__(self, prime: int, n: int) -> None:
        self.prime, self.square, self.cofactor = prime, prime * prime, n // prime
        self.scale = gmp().invert(self._log(1 + n) * self.cofactor, prime)

    def term(self, c: int) -> int:
        return self._log(c) * self.scale % self.prime * self.cofactor  # type: ignore[no-any-return]

    def _log(self, c: int) -> int:
        power = gmp().powmod_sec(c % self.square, self.prime - 1, self.square)
        return (power - 1) // self.prime % self.prime  # type: ignore[no-any-return]


def partial_decryption(key: PaillierPublicKey, share: int, ciphertexts: Sequence[int]) -> list[int]:
    """c^(d_i) mod n^2 of each."""
    return [gmp().powmod_sec(c, share, key.square) if share else gmp().mpz(1) for c in ciphertexts]


def _table(base: int | None, modulus: int, window: int) -> list[list[int]]:
    """Row i: base^(j 2^(i window)) for j below 2^window."""
    rows, power = [], gmp().mpz(base)
    for _ in range(-(-SHORT_BITS // window)):
        row = [gmp().mpz(1), power]
        while len(row) < 1 << window:
            row.append(row[-1] * power % modulus)
        rows.append(row)
        power = row[-1] * power % modulus
    return rows


def _prime(bits: int, random: RandomBytes) -> int:
    """Uniform among primes with their two highest bits set that are 3 modulo 4."""
    while True:
        drawn = gmp().mpz.from_bytes(random(-(-bits // 8)), "little") % (1 << bits) | 3 << bits - 2 | 3
        if gmp().is_prime(drawn, _TESTS):
            return drawn  # type: ignore[no-any-return]
