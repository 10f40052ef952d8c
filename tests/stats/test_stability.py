"""Does leaving out a seed change the order?"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import DataError
from atoll.stats import Swap, rank_stability


def of(**methods: list[float]) -> dict[str, dict[int, float]]:
    return {name: dict(enumerate(values)) for name, values in methods.items()}


def test_a_clear_order_is_stable() -> None:
    found = rank_stability(of(a=[1.0, 1.1, 1.2], b=[3.0, 3.1, 2.9], c=[2.0, 2.1, 2.2]))
    assert (found.order, found.swaps, found.changed, found.share) == (("b", "c", "a"), (), (), 0)


def test_the_seed_that_carries_the_order_is_named_with_the_pairs_that_swap() -> None:
    found = rank_stability(of(a=[1.0, 1.0, 9.0], b=[2.0, 2.0, 2.0], c=[0.0, 0.0, 0.0]))  # means 3.67, 2, 0
    assert found.order == ("a", "b", "c")
    assert found.swaps == (Swap(2, "a", "b"),)  # without seed 2: 1 and 2
    assert (found.changed, found.share) == ((2,), 1 / 3)
    assert found.pairs == {("a", "b"): (2,)}


def test_lower_can_be_better() -> None:
    values = of(a=[1.0, 1.0, 9.0], b=[2.0, 2.0, 2.0], c=[0.0, 0.0, 0.0])
    found = rank_stability(values, higher=False)
    assert (found.order, found.swaps) == (("c", "b", "a"), (Swap(2, "b", "a"),))


def test_a_tie_that_a_seed_makes_or_breaks_is_a_change() -> None:
    made = rank_stability(of(a=[1.0, 1.0, 2.0], b=[1.0, 1.0, 1.0]))
    assert made.changed == (2,)
    broken = rank_stability(of(a=[1.0, 3.0], b=[2.0, 2.0]))
    assert broken.changed == (0, 1)
    assert rank_stability(of(a=[0.1, 0.2, 0.4], b=[0.4, 0.1, 0.2])).changed == (0, 1, 2)  # equal but for rounding


def test_equal_methods_never_swap() -> None:
    assert rank_stability(of(a=[0.1, 0.7, 0.3], b=[0.1, 0.7, 0.3])).share == 0


def test_seeds_that_not_every_method_has_are_left_out_with_a_word() -> None:
    found = rank_stability({"a": {0: 1.0, 1: 2.0, 2: 9.0}, "b": {0: 0.5, 1: 0.5}})
    assert (found.seeds, found.left_out) == ((0, 1), "left out: seed 2 (not in b)")
    with pytest.raises(DataError, match="two common seeds or more"):
        rank_stability({"a": {0: 1.0}, "b": {0: 0.5, 1: 0.5}})


@given(st.lists(st.lists(st.integers(0, 9), min_size=4, max_size=4), min_size=2, max_size=4))
def test_a_seed_changes_the_order_exactly_if_two_sums_compare_otherwise_without_it(rows: list[list[int]]) -> None:
    found = rank_stability({f"m{i}": dict(enumerate(map(float, row))) for i, row in enumerate(rows)})

    def signs(values: np.ndarray) -> list[list[int]]:
        sums = values.sum(axis=1)  # whole numbers: exact
        return np.sign(sums[:, None] - sums[None, :]).tolist()

    table = np.array(rows)
    expected = tuple(s for s in range(4) if signs(np.delete(table, s, 1)) != signs(table))
    assert found.changed == expected
    assert found.share == len(expected) / 4
    means = [table[int(name[1:])].mean() for name in found.order]
    assert means == sorted(means, reverse=True)


def test_a_row_that_moves_as_a_whole_stays_as_stable() -> None:
    values = of(a=[1.0, 1.0, 9.0], b=[2.0, 2.0, 2.5])
    moved = {name: {seed: 5 + 3 * v for seed, v in by_seed.items()} for name, by_seed in values.items()}
    assert rank_stability(moved) == rank_stability(values)


def test_a_seed_that_diverged_is_left_out_with_a_word() -> None:
    found = rank_stability(of(a=[1.0, 2.0, math.nan], b=[0.0, 0.0, 0.0]))
    assert found.left_out == "left out: seed 2 (not finite in a)"
