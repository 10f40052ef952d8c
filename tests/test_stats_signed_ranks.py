"""Wilcoxon's signed-rank test against scipy, Demsar's example and every sign pattern counted; Holm by hand."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atoll.errors import ConfigError, DataError
from atoll.stats import holm, wilcoxon

# Demsar (2006), table 2: AUC of C4.5 and of C4.5 with m tuned, on 14 data sets.
PLAIN = [0.763, 0.599, 0.954, 0.628, 0.882, 0.936, 0.661, 0.583, 0.775, 1.000, 0.940, 0.619, 0.972, 0.957]
TUNED = [0.768, 0.591, 0.971, 0.661, 0.888, 0.931, 0.668, 0.583, 0.838, 1.000, 0.962, 0.666, 0.981, 0.978]
small = st.lists(st.integers(-4, 4), min_size=1, max_size=9)
chances = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def _brute(d: list[float], zeros: str) -> tuple[float, float, float]:
    """The two rank sums, and the share of all sign patterns at least as far from the middle."""
    kept = [x for x in d if x or zeros == "pratt"]
    ranked = [(r, x) for r, x in zip(stats.rankdata(np.abs(kept)), kept, strict=True) if x]
    above, below = (sum(r for r, x in ranked if sign * x > 0) for sign in (1, -1))
    sums = [
        sum(r for (r, _), s in zip(ranked, signs, strict=True) if s) for signs in product((0, 1), repeat=len(ranked))
    ]
    middle = (above + below) / 2
    return above, below, float(np.mean([abs(s - middle) >= abs(above - middle) for s in sums]))


@given(small, st.sampled_from(["pratt", "drop"]))
def test_the_exact_p_counts_all_sign_patterns_with_ties_and_zeros(d: list[int], zeros: str) -> None:
    found = wilcoxon(d, [0] * len(d), zeros)
    assert (found.above, found.below, found.p) == pytest.approx(_brute(d, zeros))
    assert (found.n, found.kind) == (sum(x != 0 for x in d), "exact")
    assert found.p >= found.smallest


@pytest.mark.parametrize("n", [1, 2, 5, 12, 25, 50])
def test_without_ties_it_is_scipys_exact_test(n: int) -> None:
    draw = np.random.default_rng(n)
    a, b = draw.normal(0.3, 1, n), draw.normal(0, 1, n)
    expected = stats.wilcoxon(a, b, method="exact")
    found = wilcoxon(a, b)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-10)
    assert min(found.above, found.below) == expected.statistic


def test_demsars_example() -> None:
    """He gives half of the zeros' ranks, 1.5, to each side: R+ = 93 and R- = 12. The p is the same with or without."""
    found = wilcoxon(TUNED, PLAIN)
    assert (found.above + 1.5, found.below + 1.5, found.n) == (93, 12, 12)
    assert found.p < 0.05  # "the critical value for 14 is 21", so it is rejected


def test_many_pairs_use_the_normal_distribution_and_agree_with_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    a, b = draw.integers(0, 30, 300).astype(float), draw.integers(2, 32, 300).astype(float)
    found = wilcoxon(a, b)
    expected = stats.wilcoxon(a, b, zero_method="pratt", method="asymptotic", correction=False)
    assert (found.kind, found.p) == ("normal", pytest.approx(expected.pvalue, rel=1e-6))
    monkeypatch.setattr("atoll.stats.signed_rank.EXACT", 1000)
    exact = wilcoxon(a, b)
    assert exact.kind == "exact"
    assert exact.p == pytest.approx(found.p, rel=0.02)


def test_rounding_makes_no_difference_of_its_own() -> None:
    found = wilcoxon([0.9, 0.7, 0.3], [0.8, 0.8, 0.1 + 0.2])  # in floats 0.1, -0.1 and 0 are not quite that
    assert (found.above, found.below, found.n) == (2.5, 2.5, 2)


def test_few_seeds_can_never_be_significant() -> None:
    for n, smallest in ((3, 0.25), (5, 0.0625), (6, 0.03125)):
        found = wilcoxon(range(1, n + 1), [0] * n)
        assert (found.p, found.smallest) == (smallest, smallest)


def test_no_difference_at_all_is_no_evidence() -> None:
    for zeros in ("pratt", "drop"):
        found = wilcoxon([0.5, 0.5], [0.5, 0.5], zeros)
        assert (found.p, found.n, found.above, found.smallest) == (1, 0, 0, 1)
    assert wilcoxon([0.0], [0.0]).p == 1


@given(small)
def test_swapping_the_methods_swaps_the_sums_and_keeps_p(d: list[int]) -> None:
    found, swapped = wilcoxon(d, [0] * len(d)), wilcoxon([0] * len(d), d)
    assert (found.above, found.below, found.p) == (swapped.below, swapped.above, swapped.p)


def test_holm_by_hand() -> None:
    # sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1: 0.02, 0.03, 0.06, then 0.04 may not fall below 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.7, 0.6]).tolist() == [1, 1]
    assert holm([0.2]).tolist() == [0.2]


@given(chances)
def test_holm_keeps_the_order_and_never_lowers_a_p(p: list[float]) -> None:
    found = holm(p)
    assert (found >= np.array(p)).all()
    assert (found <= 1).all()
    assert (found <= np.minimum(1, len(p) * np.array(p) + 1e-15)).all()  # never worse than Bonferroni
    order = np.argsort(p, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    assert found.min() == pytest.approx(min(1, len(p) * min(p)))


@given(chances, st.sampled_from([0.01, 0.05, 0.3]))
def test_holm_rejects_what_stepping_down_rejects(p: list[float], alpha: float) -> None:
    rejected = set()
    for i, at in enumerate(sorted(range(len(p)), key=lambda i: p[i])):  # the procedure as Holm wrote it
        if p[at] * (len(p) - i) > alpha:
            break
        rejected.add(at)
    assert set(np.flatnonzero(holm(p) <= alpha)) == rejected


def test_what_cannot_be_tested_is_refused() -> None:
    with pytest.raises(DataError, match="A has 2 values and B 1"):
        wilcoxon([1, 2], [1])
    with pytest.raises(DataError, match="entry 0 is nan"):
        wilcoxon([math.nan], [1])
    with pytest.raises(DataError, match="A: must be at least 1"):
        wilcoxon([], [])
    with pytest.raises(ConfigError, match="'pratt' or 'drop'"):
        wilcoxon([1], [2], "zsplit")
    with pytest.raises(DataError, match="between 0 and 1"):
        holm([0.5, 1.5])
