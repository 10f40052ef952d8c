"""Unsigned integers of 1 to 48 bits, one after the other without gaps, the lowest bit first.

64 numbers of b bits take 8 b bytes, so every 64th number begins at the same bit of a byte, and numpy moves all of them
at once through windows of 8 bytes that lie 8 b bytes apart.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_GROUP = 64
_WINDOW = np.dtype("<u8")


def packed_bytes(count: int, bits: int) -> int:
    return -(-count * bits // 8)


def pack(values: NDArray[Any], bits: int) -> bytes:
    """Numbers below 2**bits, packed.

    >>> pack(np.array([1, 2, 3]), 3).hex()  # 011 010 001, read from the right
    'd100'
    """
    groups = -(-len(values) // _GROUP)
    filled = np.zeros(groups * _GROUP, values.dtype)
    filled[: len(values)] = values
    out = np.zeros(groups * 8 * bits + 8, np.uint8)
    for number in range(min(_GROUP, len(values))):
        shift, window = _window(out, groups, bits, number)
        window |= filled[number::_GROUP].astype(_WINDOW) << shift
    return out[: packed_bytes(len(values), bits)].tobytes()


def unpack(data: memoryview, count: int, bits: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """`count` numbers; `data` has the bytes of at least as many."""
    groups = -(-count // _GROUP)
    source = np.zeros(groups * 8 * bits + 8, np.uint8)
    used = packed_bytes(count, bits)
    source[:used] = np.frombuffer(data[:used], np.uint8)
    out, mask = np.empty(groups * _GROUP, dtype), np.uint64((1 << bits) - 1)
    for number in range(min(_GROUP, count)):
        shift, window = _window(source, groups, bits, number)
        out[number::_GROUP] = (window >> shift) & mask
    return out[:count]


def padding_is_zero(data: memoryview, used_bits: int) -> bool:
    """Are the bits behind the last number 0?"""
    return used_bits % 8 == 0 or data[used_bits // 8] >> (used_bits % 8) == 0


def _window(buffer: NDArray[np.uint8], groups: int, bits: int, number: int) -> tuple[np.uint64, NDArray[np.uint64]]:
    """Where the number lies in each group: 8 bytes, and how far from their lowest bit."""
    start, shift = divmod(number * bits, 8)
    return np.uint64(shift), np.ndarray((groups,), _WINDOW, buffer, start, (8 * bits,))
