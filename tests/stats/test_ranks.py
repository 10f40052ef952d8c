"""Average ranks, Friedman's test and the critical difference: Demsar's own examples, scipy, and all orders counted."""

import math
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atoll.errors import ConfigError, DataError
from atoll.stats import average_ranks, critical_difference, friedman, not_different, row_ranks

# Demsar (2006), table 6: AUC of C4.5 with m = 0, with m tuned, with cf tuned, with both. In the row "voting" 0.975 is
# printed twice but ranked 2 and 3, so the last is a little lower here.
DEMSAR = [
    [0.763, 0.768, 0.771, 0.798],
    [0.599, 0.591, 0.590, 0.569],
    [0.954, 0.971, 0.968, 0.967],
    [0.628, 0.661, 0.654, 0.657],
    [0.882, 0.888, 0.886, 0.898],
    [0.936, 0.931, 0.916, 0.931],
    [0.661, 0.668, 0.609, 0.685],
    [0.583, 0.583, 0.563, 0.625],
    [0.775, 0.838, 0.866, 0.875],
    [1.000, 1.000, 1.000, 1.000],
    [0.940, 0.962, 0.965, 0.962],
    [0.619, 0.666, 0.614, 0.669],
    [0.972, 0.981, 0.975, 0.9749],
    [0.957, 0.978, 0.946, 0.970],
]
tables = st.integers(2, 5).flatmap(
    lambda k: st.lists(st.lists(st.integers(0, 6), min_size=k, max_size=k), min_size=2, max_size=8)
)


def test_demsars_average_ranks() -> None:
    assert average_ranks(DEMSAR).round(3).tolist() == [3.143, 2.000, 2.893, 1.964]


def test_demsars_friedman_and_iman_davenport() -> None:
    found = friedman(DEMSAR, ties=False)
    assert found.chi2 == pytest.approx(9.28, abs=0.005)
    assert found.f == pytest.approx(3.69, abs=0.005)
    assert found.p < 0.05
    assert found.f_p == pytest.approx(stats.f.sf(found.f, 3, 39))


def test_demsars_critical_differences() -> None:
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert critical_difference(4, 14, alpha=0.10) == pytest.approx(1.12, abs=0.005)


@pytest.mark.parametrize(
    ("alpha", "printed"),  # Demsar, table 5a: q for 2 to 10 methods
    [
        (0.05, [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]),
        (0.10, [1.645, 2.052, 2.291, 2.459, 2.589, 2.693, 2.780, 2.855, 2.920]),
    ],
)
def test_demsars_critical_values(alpha: float, printed: list[float]) -> None:
    for k, q in enumerate(printed, start=2):
        assert critical_difference(k, 10, alpha) == pytest.approx(q * math.sqrt(k * (k + 1) / 60), rel=5e-4)


def test_demsars_groups() -> None:
    """At 0.10 C4.5 differs from both with m tuned; "cf" from neither of its sides."""
    ranks = average_ranks(DEMSAR)
    assert not_different(ranks, critical_difference(4, 14, 0.10)) == [(3, 1, 2), (2, 0)]
    assert not_different(ranks, 1.15) == [(3, 1, 2), (1, 2, 0)]


def test_two_methods_need_the_difference_of_the_sign_test() -> None:
    assert critical_difference(2, 25) == pytest.approx(stats.norm.ppf(0.975) / math.sqrt(25), rel=1e-6)


def test_friedman_with_ties_is_scipys() -> None:
    rows = np.array(DEMSAR)
    expected = stats.friedmanchisquare(*rows.T)
    found = friedman(rows)
    assert (found.chi2, found.p) == pytest.approx((expected.statistic, expected.pvalue))
    assert found.chi2 > friedman(rows, ties=False).chi2


def test_friedmans_chi2_has_its_mean_over_all_orders_there_are() -> None:
    """Three rows of three methods: over all 216 orders the mean of chi^2 is exactly its degrees, k - 1."""
    found = [friedman(rows).chi2 for rows in product(permutations([1.0, 2.0, 3.0]), repeat=3)]
    assert np.mean(found) == pytest.approx(2)


def test_the_ends_of_friedmans_scale() -> None:
    same = friedman([[3, 2, 1]] * 4)
    assert (same.chi2, same.f, same.f_p) == (pytest.approx(8), math.inf, 0)
    tied = friedman([[1, 1, 1]] * 4)
    assert (tied.chi2, tied.p, tied.f, tied.f_p) == (0, 1, 0, 1)
    even = friedman([[1, 2], [2, 1]])
    assert (even.chi2, even.p, even.f) == (0, 1, 0)


def test_lower_can_be_better() -> None:
    rows = [[0.1, 0.2, 0.3], [0.5, 0.4, 0.6]]
    assert average_ranks(rows, higher=False).tolist() == [1.5, 1.5, 3]
    assert average_ranks(rows).tolist() == [2.5, 2.5, 1]


def test_means_that_differ_only_by_rounding_are_tied() -> None:
    first, second = (0.1 + 0.2) / 3, 0.3 / 3
    assert first != second
    assert row_ranks([[first, second, 0.01]]).tolist() == [[1.5, 1.5, 3]]


@given(tables)
def test_ranks_of_a_row_add_up_and_are_scipys(rows: list[list[int]]) -> None:
    found = row_ranks(np.array(rows, float))
    k = len(rows[0])
    assert found.sum(axis=1).tolist() == [k * (k + 1) / 2] * len(rows)
    assert found.tolist() == [stats.rankdata([-x for x in row]).tolist() for row in rows]


@given(tables)
def test_renaming_the_methods_changes_nothing_but_the_names(rows: list[list[int]]) -> None:
    table = np.array(rows, float)
    assert average_ranks(table[:, ::-1]).tolist() == average_ranks(table)[::-1].tolist()
    assert friedman(table[:, ::-1]).chi2 == pytest.approx(friedman(table).chi2)
    if table.shape[1] > 2 and (table != table[:, :1]).any():  # scipy wants three methods, and a difference
        assert friedman(table).chi2 == pytest.approx(stats.friedmanchisquare(*table.T).statistic)


@given(st.lists(st.integers(4, 40), min_size=2, max_size=8), st.sampled_from([0.0, 1.0, 3.0]))
def test_two_methods_share_a_bar_exactly_if_they_are_within_the_difference(quarters: list[int], cd: float) -> None:
    ranks = [q / 4 for q in quarters]
    groups = not_different(ranks, cd)
    for i in range(len(ranks)):
        for j in range(i):
            together = any(i in g and j in g for g in groups)
            assert together == (abs(ranks[i] - ranks[j]) <= cd)
    assert not any(set(g) < set(h) for g in groups for h in groups)
    assert all(len(g) > 1 for g in groups)


def test_what_cannot_be_ranked_is_refused() -> None:
    with pytest.raises(DataError, match="rows of one length"):
        average_ranks([[1, 2], [1, 2, 3]])
    with pytest.raises(DataError, match="rows of one length"):
        average_ranks([[1], [2]])
    with pytest.raises(DataError, match="rows of one length"):
        average_ranks([])
    with pytest.raises(DataError, match=r"row 1: entry 0 is nan.*worst value"):
        average_ranks([[1, 2], [math.nan, 2]])
    with pytest.raises(DataError, match="two rows or more"):
        friedman([[1, 2, 3]])
    with pytest.raises(ConfigError, match="two methods and one row"):
        critical_difference(1, 5)
    with pytest.raises(ConfigError, match="alpha"):
        critical_difference(3, 5, alpha=5)
