"""Packed integers, against one long Python integer."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from atoll.wire.bit_packing import pack, packed_bytes, padding_is_zero, unpack


@given(st.data(), st.integers(0, 48), st.integers(0, 200))
def test_numbers_are_packed_like_one_long_integer(data, bits, count):
    values = data.draw(st.lists(st.integers(0, (1 << bits) - 1), min_size=count, max_size=count))
    long = sum(value << (i * bits) for i, value in enumerate(values))
    packed = pack(np.array(values, np.int64), bits)
    assert packed == long.to_bytes(packed_bytes(count, bits), "little")
    assert unpack(memoryview(packed), count, bits, np.dtype(np.int64)).tolist() == values


def test_padding_is_what_lies_behind_the_last_bit():
    assert padding_is_zero(memoryview(b"\x07"), 3)
    assert not padding_is_zero(memoryview(b"\x0f"), 3)
    assert padding_is_zero(memoryview(b"\xff"), 8)
    assert padding_is_zero(memoryview(b""), 0)
