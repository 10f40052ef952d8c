"""Rice codes, against a slow coder that writes one bit after the other."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import WireError
from atoll.wire.positions import code_bytes, decode_positions, encode_positions, most_code_bytes, rice_parameter


def slow_rice(positions: list[int], r: int) -> bytes:
    gaps = [p - before - 1 for before, p in zip([-1, *positions], positions, strict=False)]
    bits = [gap >> i & 1 for gap in gaps for i in range(r)]
    for gap in gaps:
        bits += [0] * (gap >> r) + [1]
    return sum(bit << i for i, bit in enumerate(bits)).to_bytes(-(-len(bits) // 8), "little")


@st.composite
def rows(draw):
    limit = draw(st.integers(1, 60) | st.integers(1, 3000))
    return sorted(draw(st.sets(st.integers(0, limit - 1), max_size=100))), limit


@given(rows())
def test_the_code_is_that_of_a_slow_coder_and_comes_back(row):
    positions, limit = row
    code = encode_positions(np.array(positions, np.int64), limit)
    assert code == (slow_rice(positions, rice_parameter(len(positions), limit)) if positions else b"")
    assert code_bytes(torch.tensor(positions), limit) == len(code)
    assert decode_positions(memoryview(code), len(positions), limit).tolist() == positions


@given(rows())
def test_no_code_is_longer_than_its_bound_or_a_bitmap(row):
    positions, limit = row
    bound = most_code_bytes(len(positions), limit)
    assert len(encode_positions(np.array(positions, np.int64), limit)) <= bound <= -(-limit // 8)
    late = np.arange(limit - len(positions), limit)  # one gap, as long as can be
    assert len(encode_positions(late, limit)) == bound


def test_dense_positions_are_a_bitmap():
    assert encode_positions(np.array([0, 1, 3, 4, 6]), 8) == bytes([0b01011011])


@pytest.mark.parametrize("share", [0.5, 0.3, 0.1, 0.01, 0.003])
def test_no_other_parameter_is_much_shorter(share):
    limit = 20_000
    positions = np.sort(np.random.default_rng(0).permutation(limit)[: int(share * limit)]).tolist()
    ours = rice_parameter(len(positions), limit)
    lengths = [len(slow_rice(positions, r)) for r in range(max(0, ours - 2), ours + 3)]
    assert len(slow_rice(positions, ours)) <= 1.02 * min(lengths)


@pytest.mark.parametrize(
    ("code", "count", "limit", "words"),
    [
        ("0000", 1, 64, "No code of them is as long"),
        ("00", 0, 64, "No code of them is as long"),
        ("00", 1, 64, "0 quotients"),
        ("", 2, 64, "do not hold 2 remainders"),
        ("60", 1, 64, "2 quotients"),
        ("0700", 3, 9, "bytes behind them"),
        ("08", 1, 3, "the last is 3"),
    ],
)
def test_what_is_no_code_is_refused(code, count, limit, words):
    with pytest.raises(WireError, match=words):
        decode_positions(memoryview(bytes.fromhex(code)), count, limit)
