"""Unsigned integers of up to 48 bits, one after the other without gaps, the lowest bit first.

64 numbers of b bits take 8 b bytes, so every 64th number begins at the same bit of a byte, and numpy moves all of them
at once through windows of 8 bytes that lie 8 b bytes apart. Where numbers fill a byte or are whole bytes, groups are
smaller and windows are as wide as a group.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGNED = {1: "<u1", 2: "<u1", 4: "<u1", 8: "<u1", 16: "<u2", 32: "<u4"}


def packed_bytes(count: int, bits: int) -> int:
    return -(-count * bits // 8)


def pack(values: NDArray[Any], bits: int) -> bytes:
    """Numbers below 2**bits, packed.

    >>> pack(np.array([1, 2, 3]), 3).hex()  # 011 010 001, read from the right
    'd100'
    """
    window, group = _window(bits)
    groups = -(-len(values) // group)
    filled = np.zeros(groups * group, values.dtype)
    filled[: len(values)] = values
    out = np.zeros(groups * group * bits // 8 + 8, np.uint8)
    for number in range(min(group, len(values))):
        there, shift = _places(out, window, groups, group, bits, number)
        there |= filled[number::group].astype(window) << shift
    return out[: packed_bytes(len(values), bits)].tobytes()


def unpack(data: memoryview, count: int, bits: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """`count` numbers; `data` has the bytes of at least as many."""
    window, group = _window(bits)
    groups = -(-count // group)
    source = np.zeros(groups * group * bits // 8 + 8, np.uint8)
    used = packed_bytes(count, bits)
    source[:used] = np.frombuffer(data[:used], np.uint8)
    out, mask = np.empty(groups * group, dtype), window.type((1 << bits) - 1)
    for number in range(min(group, count)):
        there, shift = _places(source, window, groups, group, bits, number)
        out[number::group] = (there >> shift) & mask
    return out[:count]


def padding_is_zero(data: memoryview, used_bits: int) -> bool:
    """Are the bits behind the last number 0?"""
    return used_bits % 8 == 0 or data[used_bits // 8] >> (used_bits % 8) == 0


def _window(bits: int) -> tuple[np.dtype[Any], int]:
    """The type of a window, and how many numbers make a group."""
    window = np.dtype(_ALIGNED.get(bits, "<u8"))
    return window, 8 * window.itemsize // bits if bits in _ALIGNED else 64


def _places(
    buffer: NDArray[np.uint8], window: np.dtype[Any], groups: int, group: int, bits: int, number: int
) -> tuple[NDArray[Any], Any]:
    """The windows that hold this number of each group, and how far it is from their lowest bit."""
    start, shift = divmod(number * bits, 8)
    return np.ndarray((groups,), window, buffer, start, (group * bits // 8,)), window.type(shift)
