"""Strictly increasing positions below a limit: Rice codes of their gaps, or a bitmap.

A gap g is the number of positions left out before the next one. Its remainder is its lowest r bits, its quotient
q = g >> r. All remainders come first, packed; then every quotient in unary: q zeros and a one. r is fixed by how many
positions there are and by the limit, so that r needs no room and the length has a bound.

Rice and Plaunt, Some practical universal noiseless coding techniques (1971, 1979).
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.errors import WireError
from atoll.wire.bit_packing import pack, packed_bytes, unpack

RICE, BITMAP = 0, 1


def rice_parameter(count: int, limit: int) -> int:
    """The least r for which one more bit of remainder would not save a bit of quotient in all, at worst.

    >>> rice_parameter(10, 1000)
    6
    """
    r = 0
    while (limit - count) >> (r + 1) > count:
        r += 1
    return r


def bitmap_bytes(limit: int) -> int:
    return -(-limit // 8)


def most_rice_bytes(count: int, limit: int) -> int:
    """No positions need more: gaps add up to at most limit - count."""
    if count == 0:
        return 0
    r = rice_parameter(count, limit)
    return -(-(count * (r + 1) + ((limit - count) >> r)) // 8)


def most_code_bytes(count: int, limit: int) -> int:
    """Of the shorter of the two codes."""
    return min(bitmap_bytes(limit), most_rice_bytes(count, limit))


def code_bytes(positions: Tensor, limit: int) -> Tensor:
    """How long the shorter code is, without making it: int64, and vmappable."""
    count = positions.shape[0]
    if count == 0:
        return torch.zeros((), dtype=torch.int64, device=positions.device)
    r, p = rice_parameter(count, limit), positions.long()
    quotients = (p[0] >> r) + ((p[1:] - p[:-1] - 1) >> r).sum()
    return ((quotients + count * (r + 1) + 7) // 8).clamp(max=bitmap_bytes(limit))


def encode_positions(positions: NDArray[np.int64], limit: int) -> tuple[int, bytes]:
    """Which code, and its bytes: the shorter; Rice if they are equal."""
    count = len(positions)
    if count == 0:
        return RICE, b""
    r = rice_parameter(count, limit)
    gaps = np.diff(positions, prepend=-1) - 1
    ends = np.cumsum((gaps >> r) + 1) - 1  # where the ones are
    if packed_bytes(count * r + int(ends[-1]) + 1, 1) > bitmap_bytes(limit):
        return BITMAP, _ones(positions, limit)
    remainders = pack(gaps & ((1 << r) - 1), r)
    whole, rest = divmod(count * r, 8)
    unary = bytearray(_ones(ends + rest, int(ends[-1]) + rest + 1))
    if rest:
        unary[0] |= remainders[-1]
    return RICE, remainders[:whole] + unary


def decode_positions(mode: int, code: memoryview, count: int, limit: int) -> NDArray[np.int64]:
    """`code` may be anything: whatever it is, no more than its bytes and `count` positions are allocated."""
    if mode not in (RICE, BITMAP):
        raise WireError(f"positions: code {mode} is unknown. 0 is Rice, 1 a bitmap.")
    if len(code) > most_code_bytes(count, limit):
        raise WireError(
            f"positions: {len(code)} bytes for {count} below {limit}. The shorter code never needs as many."
        )
    return _from_bitmap(code, count, limit) if mode == BITMAP else _from_rice(code, count, limit)


def _from_bitmap(code: memoryview, count: int, limit: int) -> NDArray[np.int64]:
    if len(code) != bitmap_bytes(limit):
        raise WireError(f"positions: a bitmap of {len(code)} bytes for a limit of {limit}. It has a bit for each.")
    return _checked(np.flatnonzero(_bits(code)), count, limit)


def _from_rice(code: memoryview, count: int, limit: int) -> NDArray[np.int64]:
    r = rice_parameter(count, limit) if count else 0
    whole, rest = divmod(count * r, 8)
    if packed_bytes(count * r, 1) > len(code):
        raise WireError(f"positions: {len(code)} bytes do not hold {count} remainders of {r} bits. The payload is cut.")
    ends = np.flatnonzero(_bits(code[whole:])[rest:])
    if len(ends) != count or packed_bytes(count * r + (int(ends[-1]) + 1 if count else 0), 1) != len(code):
        raise WireError(f"positions: {len(ends)} quotients, or bytes behind them. There must be {count}, and no more.")
    quotients = np.diff(ends, prepend=-1) - 1
    gaps = (quotients << r) + unpack(code, count, r, np.dtype(np.int64))
    return _checked(np.cumsum(gaps + 1) - 1, count, limit)


def _checked(positions: NDArray[np.int64], count: int, limit: int) -> NDArray[np.int64]:
    if len(positions) != count or (count and int(positions[-1]) >= limit):
        raise WireError(f"positions: {len(positions)} of them, or one beyond. There must be {count} below {limit}.")
    return positions


def _ones(places: NDArray[Any], size: int) -> bytes:
    """Bits that are 1 in these places, the lowest first."""
    bits = np.zeros(size, np.uint8)
    bits[places] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _bits(code: memoryview) -> NDArray[np.uint8]:
    return np.unpackbits(np.frombuffer(code, np.uint8), bitorder="little")
