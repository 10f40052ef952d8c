"""Shamir's secret sharing over the prime 2^256 + 297: any `threshold` shares give a secret of 32 bytes, fewer nothing.

f(0) is the secret, the other coefficients are uniform, the share of holder i is f(i + 1). Shamir, How to share a secret
(1979).

>>> import secrets
>>> shares = split([7], [1, 2, 3], threshold=2, random=secrets.token_bytes)
>>> combine(coefficients([1, 3]), [shares[0][0], shares[2][0]])
7
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

from atoll.errors import ProtocolError
from atoll.protocols.secure_aggregation import RandomBytes

PRIME = (1 << 256) + 297  # the least above all secrets of 32 bytes
SHARE_BYTES = 33
_DRAW_BYTES = 64  # a number of 512 bits modulo the prime is uniform up to 2^-255
_DELAYED = 8  # steps of Horner's scheme between two reductions


def split(secrets: Sequence[int], points: Sequence[int], threshold: int, random: RandomBytes) -> list[list[int]]:
    """The shares of each point: one of every secret."""
    if not 1 <= threshold <= len(points) or len(set(points)) < len(points) or 0 in points:
        raise ProtocolError(f"shamir: {threshold} of {len(points)} shares, at distinct points other than 0, are asked.")
    polynomials = [_polynomial(secret, threshold, random) for secret in secrets]
    return [[_value(blocks, x) for blocks in polynomials] for x in points]


def coefficients(points: Sequence[int]) -> list[int]:
    """What shares at these points are multiplied with: the product of j / (j - i) over the others, modulo the prime."""
    if len(set(points)) < len(points):
        raise ProtocolError("shamir: two shares at one point. Each holder has one of its own.")
    numerator = 1
    for j in points:
        numerator = numerator * j % PRIME
    below = []
    for i in points:
        product = i
        for j in points:
            if j != i:
                product = product * (j - i) % PRIME
        below.append(product)
    return [numerator * inverse % PRIME for inverse in _inverses(below)]


def combine(coefficients: Sequence[int], shares: Sequence[int]) -> int:
    """The secret: f(0) by Lagrange, of at least as many shares as the threshold."""
    if len(coefficients) != len(shares):
        raise ProtocolError(f"shamir: {len(shares)} shares for {len(coefficients)} points. Give one for each.")
    total: int = sum(map(mul, coefficients, shares))
    return total % PRIME


def _polynomial(secret: int, threshold: int, random: RandomBytes) -> list[list[int]]:
    """Coefficients from the highest on, in blocks between which Horner's scheme reduces."""
    if not 0 <= secret < PRIME:
        raise ProtocolError("shamir: a secret outside the field. Secrets have at most 32 bytes.")
    draws = random(_DRAW_BYTES * (threshold - 1))
    cuts = range(0, len(draws), _DRAW_BYTES)
    terms = [int.from_bytes(draws[i : i + _DRAW_BYTES], "little") % PRIME for i in cuts] + [secret]
    return [terms[i : i + _DELAYED] for i in range(0, len(terms), _DELAYED)]


def _value(blocks: Sequence[Sequence[int]], x: int) -> int:
    total = 0
    for block in blocks:
        for term in block:
            total = total * x + term
        total %= PRIME
    return total


def _inverses(values: Sequence[int]) -> list[int]:
    """All with one modular inverse (Montgomery's trick)."""
    products = [1]
    for value in values:
        products.append(products[-1] * value % PRIME)
    rest, inverses = pow(products[-1], -1, PRIME), []
    for value, before in zip(reversed(values), reversed(products[:-1]), strict=True):
        inverses.append(rest * before % PRIME)
        rest = rest * value % PRIME
    return inverses[::-1]
