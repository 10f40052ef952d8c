"""Values paired by seed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import DataError
from atoll.stats import align, pair

by_seed = st.dictionaries(st.integers(0, 12), st.floats(0, 1), max_size=8)


def test_values_are_paired_by_seed_and_not_by_place() -> None:
    a, b, found = pair({2: 0.2, 0: 0.0, 1: 0.1}, {1: 1.1, 2: 1.2, 0: 1.0})
    assert (a.tolist(), b.tolist()) == ([0.0, 0.1, 0.2], [1.0, 1.1, 1.2])
    assert (found.seeds, found.note, dict(found.left_out)) == ((0, 1, 2), "", {})


def test_what_was_left_out_is_said() -> None:
    a, b, found = pair({0: 0.1, 1: 0.2, 2: math.nan, 7: 0.3}, {1: 0.5, 2: 0.6, 3: 0.7, 4: math.inf}, ("ours", "theirs"))
    assert (a.tolist(), b.tolist(), found.seeds) == ([0.2], [0.5], (1,))
    assert found.note == (
        "left out: seeds 0, 7 (not in theirs), seed 2 (not finite in ours), seed 3 (not in ours), "
        "seed 4 (not in ours, not finite in theirs)"
    )


def test_nothing_in_common_is_refused_with_what_each_has() -> None:
    with pytest.raises(DataError, match=r"no seed is common and finite \(A has seeds 0, 1; B has seed 2\)"):
        pair({0: 1.0, 1: 1.0}, {2: 1.0})
    with pytest.raises(DataError, match="no seed is common and finite"):
        pair({0: math.nan}, {0: 1.0})
    with pytest.raises(DataError, match="B has no seeds"):
        pair({0: 1.0}, {})


def test_one_method_is_no_pair() -> None:
    with pytest.raises(DataError, match="two methods or more"):
        align({"fedavg": {0: 1.0}})
    with pytest.raises(DataError, match="two names"):
        pair({0: 1.0}, {0: 2.0}, ("same", "same"))


@given(by_seed, by_seed, by_seed)
def test_every_seed_is_either_common_or_left_out(a: dict[int, float], b: dict[int, float], c: dict[int, float]) -> None:
    common = sorted(a.keys() & b.keys() & c.keys())
    methods = {"a": a, "b": b, "c": c}
    if not common:
        with pytest.raises(DataError):
            align(methods)
        return
    found = align(methods)
    assert list(found.seeds) == common
    assert sorted([*found.seeds, *found.left_out]) == sorted(a.keys() | b.keys() | c.keys())
    assert all(found.values[n].tolist() == [methods[n][s] for s in common] for n in methods)
    assert found.difference("a", "b").tolist() == [a[s] - b[s] for s in common]
