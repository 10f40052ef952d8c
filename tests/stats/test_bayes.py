"""The Bayesian correlated t-test: against its authors' program, an integral, Student's t, and OARF's printed tables."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from atoll.errors import ConfigError, DataError
from atoll.stats import Posterior, correlated_t
from tests.support import paths

GOLDEN = json.loads((paths.GOLDEN / "correlated_t.json").read_text())
A, B = [0.91, 0.93, 0.92, 0.95, 0.90], [0.90, 0.90, 0.93, 0.92, 0.91]
pairs = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=2, max_size=10)


def three(p: Posterior) -> tuple[float, float, float]:
    return p.p_a, p.p_equal, p.p_b


@pytest.mark.parametrize("case", GOLDEN)
def test_the_probabilities_are_those_of_the_authors_program(case: dict[str, Any]) -> None:
    found = correlated_t(case["a"], case["b"], rope=case["rope"], rho=case["rho"])
    assert three(found) == pytest.approx(case["p"], rel=1e-9, abs=1e-14)  # theirs is 1 - cdf: no digits below 1e-16


def test_the_golden_cases_are_not_all_foregone() -> None:
    open_ones = [case for case in GOLDEN if max(case["p"]) < 0.95]
    assert len(open_ones) > 20
    assert {case["rho"] for case in GOLDEN} == {1 / 3, 1 / 5, 1 / 10, 2 / 10, 1 / 12}


@pytest.mark.parametrize("rope", [0.0, 0.005, 0.05])
@pytest.mark.parametrize("rho", [0.0, 0.1, 0.5])
def test_the_probabilities_are_areas_under_the_posterior_written_out(rope: float, rho: float) -> None:
    d = np.subtract(A, B)
    n, m = len(d), d.mean()
    variance = (1 / n + rho / (1 - rho)) * d.var(ddof=1)

    def density(x: float) -> float:  # Student's t on n - 1 degrees, from its definition
        t2 = (x - m) ** 2 / variance
        return float(
            math.gamma(n / 2)
            / (math.gamma((n - 1) / 2) * math.sqrt((n - 1) * math.pi * variance))
            * (1 + t2 / (n - 1)) ** (-n / 2)
        )

    found = correlated_t(A, B, rope=rope, rho=rho)
    above = integrate.quad(density, rope, math.inf, epsabs=1e-11)[0]
    equal = integrate.quad(density, -rope, rope, epsabs=1e-11)[0]
    assert three(found) == pytest.approx((above, equal, 1 - above - equal), abs=1e-7)
    assert found.density([0.0, 0.01]).tolist() == pytest.approx([density(0.0), density(0.01)])


def test_without_rope_and_correlation_it_is_students_paired_t() -> None:
    found = correlated_t(A, B, rope=0, rho=0)
    assert 2 * found.p_b == pytest.approx(stats.ttest_rel(A, B).pvalue)
    interval = stats.ttest_rel(A, B).confidence_interval(0.95)
    assert (found.quantile(0.025), found.quantile(0.975)) == pytest.approx((interval.low, interval.high))


# OARF, tables 4c and 5b: 12 runs each. The difference of the printed means (A - B), the rope, and the three printed
# probabilities; 1.00 stands for what the others leave. The spread of the differences is not printed, so one number is
# taken from the three, and the other two must follow.
OARF = [
    ("4c, CIFAR-10, FedSGD and solo", 89.30 - 78.54, 1, (1.0, 1.49e-10, 2.30e-11)),
    ("4c, CIFAR-10, FedSGD and combined", 89.30 - 88.92, 1, (7.97e-2, 9.17e-1, 3.29e-3)),
    ("4c, sentiment, FedSGD and IMDB", 86.34 - 83.24, 1, (9.99e-1, 9.42e-4, 3.52e-6)),
    ("4c, sentiment, FedSGD and Amazon", 86.34 - 84.60, 1, (9.23e-1, 7.70e-2, 7.26e-5)),
    ("4c, sentiment, FedSGD and combined", 86.34 - 86.81, 1, (4.5e-3, 8.54e-1, 1.41e-1)),
    ("5b, CIFAR-10, rounds", 159.42 - 85.58, 10, (1.0, 2.22e-6, 1.61e-7)),
    ("5b, CIFAR-10, throughput", 3913.31 - 1644.52, 100, (1.0, 1.28e-14, 7.88e-15)),
    ("5b, CIFAR-10, overhead", 25.83 - 6.40, 10, (1.0, 2.05e-12, 0.0)),
    ("5b, sentiment, rounds", 176.67 - 127.67, 10, (9.13e-1, 6.15e-2, 2.46e-2)),
    ("5b, sentiment, throughput", 1212.97 - 860.54, 100, (1.0, 1.71e-7, 3.80e-10)),
    ("5b, sentiment, overhead", 36.41 - 16.50, 10, (1.0, 9.51e-11, 5.55e-16)),
]


def _scale_of(mean: float, rope: float, printed: tuple[float, float, float]) -> float:
    """The scale at which p(A), or p(not A) where that is smaller, is what was printed."""

    def smaller(p_a: float, p_equal: float, p_b: float) -> float:
        return math.log(p_a if printed[0] < 0.5 else p_equal + p_b)

    gap = lambda s: smaller(*three(Posterior(mean, s, 11, rope))) - smaller(*printed)  # noqa: E731
    return float(optimize.brentq(gap, 1e-2 * abs(mean), 10 * abs(mean), xtol=1e-9))


@pytest.mark.parametrize(("row", "mean", "rope", "printed"), OARF, ids=[row[0] for row in OARF])
def test_oarfs_printed_probabilities_follow_from_one_posterior(
    row: str, mean: float, rope: float, printed: tuple[float, float, float]
) -> None:
    found = Posterior(mean, _scale_of(mean, rope, printed), 11, rope)
    assert three(found) == pytest.approx(printed, rel=0.05, abs=1e-16)  # the means have two digits after the point


APART = {  # the printed deviations of A and B, tables 4a, 4b and 5a
    "4c, CIFAR-10, FedSGD and solo": (0.73, 0.81),
    "4c, CIFAR-10, FedSGD and combined": (0.73, 0.76),
    "4c, sentiment, FedSGD and IMDB": (1.03, 0.66),
    "4c, sentiment, FedSGD and Amazon": (1.03, 0.53),
    "4c, sentiment, FedSGD and combined": (1.03, 0.26),
    "5b, CIFAR-10, rounds": (17.45, 5.04),
    "5b, CIFAR-10, throughput": (36.85, 90.40),
    "5b, CIFAR-10, overhead": (0.61, 0.33),
    "5b, sentiment, rounds": (53.25, 28.89),
    "5b, sentiment, throughput": (17.63, 41.98),
    "5b, sentiment, overhead": (0.70, 0.84),
}


def test_oarfs_scales_fit_a_correlation_of_one_twelfth() -> None:
    """Runs of A and B that are independent differ with both variances; baycomp takes 12 values for 12 folds."""
    seen = [_scale_of(m, rope, p) / math.hypot(*APART[row]) for row, m, rope, p in OARF]
    assert np.median(seen) == pytest.approx(math.sqrt(1 / 12 + 1 / 11), rel=0.05)
    assert seen[:5] == pytest.approx([math.sqrt(1 / 12 + 1 / 11)] * 5, rel=0.08)


def test_oarfs_scales_rule_out_a_correlation_of_none() -> None:
    """However A and B go together, differences deviate by no more than both deviations together (5 % for rounding)."""

    def impossible(rho: float) -> int:
        most = {row: 1.05 * math.sqrt(12 / 11) * sum(apart) for row, apart in APART.items()}  # if printed with n
        spread = {row: _scale_of(m, rope, p) / math.sqrt(1 / 12 + rho / (1 - rho)) for row, m, rope, p in OARF}
        return sum(spread[row] > most[row] for row in APART)

    assert impossible(1 / 12) == 0
    assert impossible(0.0) == 6


def test_more_correlation_says_less() -> None:
    found = [correlated_t(A, B, rope=0.002, rho=rho) for rho in (0.0, 0.1, 0.5)]
    assert found[0].p_a > found[1].p_a > found[2].p_a
    assert found[0].mean == found[2].mean


def test_small_probabilities_keep_their_digits() -> None:
    found = Posterior(mean=1.0, scale=0.001, df=11, rope=0.1)
    t = stats.t(11, 1.0, 0.001)
    assert found.p_equal == pytest.approx(t.cdf(0.1) - t.cdf(-0.1), rel=1e-9)
    assert 0 < found.p_b < found.p_equal < 1e-27
    mirrored = Posterior(mean=-1.0, scale=0.001, df=11, rope=0.1)
    assert three(mirrored) == tuple(reversed(three(found)))


@pytest.mark.parametrize(
    ("gap", "rope", "expected"),
    [(0.5, 0.25, "a"), (-0.5, 0.25, "b"), (0.125, 0.25, "equal"), (0.25, 0.25, "equal"), (0.0, 0.0, "equal")],
)
def test_differences_without_spread_are_certain(gap: float, rope: float, expected: str) -> None:
    found = correlated_t([1 + gap, 2 + gap, 3 + gap], [1.0, 2.0, 3.0], rope=rope, rho=0.1)
    assert found.scale == 0
    assert sorted(three(found)) == [0, 0, 1]
    assert found.verdict() == expected
    assert found.density([gap, gap + 1]).tolist() == [math.inf, 0]
    assert [part.tolist() for part in found.curve()] == [[gap], [math.inf]]


def test_differences_that_only_rounding_tells_apart_have_no_spread() -> None:
    assert correlated_t([0.9, 0.8, 0.7], [0.8, 0.7, 0.6], rope=0.05, rho=0).scale == 0
    assert correlated_t([0.9, 0.8, 0.7001], [0.8, 0.7, 0.6], rope=0.05, rho=0).scale > 0


def test_the_drawn_curve_holds_the_belief_and_the_rope() -> None:
    found = correlated_t(A, B, rope=0.1, rho=0)
    x, y = found.curve(2001)
    assert x[0] < -0.1
    assert x[-1] > 0.1
    assert integrate.trapezoid(y, x) == pytest.approx(1, abs=0.011)  # 99 % or more
    assert x[np.argmax(y)] == pytest.approx(found.mean, abs=x[1] - x[0])


def test_a_verdict_needs_to_be_sure() -> None:
    p = Posterior(mean=1.0, scale=1.0, df=10, rope=0.5)
    assert p.verdict() == "undecided"
    assert p.verdict(sure=0.6) == "a"
    with pytest.raises(ConfigError, match=r"above 0\.5"):
        p.verdict(sure=0.4)


@given(pairs, st.sampled_from([0.0, 1.0, 10.0]), st.sampled_from([0.0, 0.1]))
def test_the_three_add_up_and_swapping_the_methods_swaps_them(
    values: list[tuple[int, int]], rope: float, rho: float
) -> None:
    a, b = ([float(v[i]) for v in values] for i in (0, 1))
    found, swapped = correlated_t(a, b, rope=rope, rho=rho), correlated_t(b, a, rope=rope, rho=rho)
    assert sum(three(found)) == pytest.approx(1)
    assert min(three(found)) >= 0
    assert three(swapped) == pytest.approx(tuple(reversed(three(found))), abs=1e-12)
    assert three(correlated_t(a, b, rope=rope, rho=rho, higher=False)) == three(swapped)


@given(pairs, st.integers(-5, 5), st.sampled_from([0.5, 4.0]))
def test_a_common_shift_and_another_unit_change_nothing(
    values: list[tuple[int, int]], shift: int, scale: float
) -> None:
    a, b = (np.array([float(v[i]) for v in values]) for i in (0, 1))
    found = correlated_t(a, b, rope=2, rho=0.1)
    assert three(correlated_t(scale * (a + shift), scale * (b + shift), rope=2 * scale, rho=0.1)) == pytest.approx(
        three(found), abs=1e-9
    )


def test_what_cannot_be_tested_is_refused() -> None:
    with pytest.raises(DataError, match="A: must be at least 2"):
        correlated_t([0.5], [0.4], rope=0.01, rho=0)
    with pytest.raises(DataError, match="A has 3 values and B 2"):
        correlated_t([1, 2, 3], [1, 2], rope=0, rho=0)
    with pytest.raises(DataError, match="B: entry 1 is nan"):
        correlated_t([1, 2], [1, math.nan], rope=0, rho=0)
    with pytest.raises(ConfigError, match="rope: must be 0 or above"):
        correlated_t(A, B, rope=-1, rho=0)
    with pytest.raises(ConfigError, match="rho: must be at least 0 and below 1"):
        correlated_t(A, B, rope=0, rho=1)
