"""Means over seeds and their intervals: by hand, by counting every resample, and against scipy."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import stdtrit

from atoll.errors import ConfigError, DataError
from atoll.stats import bootstrap_interval, half_width, t_interval
from atoll.stats.intervals import t_quantile

BOTH = (t_interval, bootstrap_interval)
SKEWED = [0.61, 0.58, 0.66, 0.59, 0.91]
whole = st.lists(st.integers(-50, 50), min_size=2, max_size=9).map(lambda v: [float(x) for x in v])


def test_the_t_interval_by_hand() -> None:
    found = t_interval([1.0, 2.0])
    assert (found.mean, found.n, found.kind, found.level) == (1.5, 2, "t", 0.95)
    assert found.std == pytest.approx(math.sqrt(0.5))
    assert (found.low, found.high) == pytest.approx((1.5 - 12.7062047 * 0.5, 1.5 + 12.7062047 * 0.5))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_the_t_interval_is_scipys(level: float) -> None:
    found = t_interval(SKEWED, level)
    expected = stats.t.interval(level, 4, loc=np.mean(SKEWED), scale=stats.sem(SKEWED))
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.half == pytest.approx((expected[1] - expected[0]) / 2)


def test_the_t_interval_covers_as_often_as_it_says() -> None:
    draws = np.random.default_rng(5).standard_normal((4, 20_000))  # 20,000 experiments of 4 seeds, true mean 0
    half = half_width(draws, 0.9)
    covered = (np.abs(draws.mean(axis=0)) <= half).mean()
    assert abs(covered - 0.9) < 5 * math.sqrt(0.9 * 0.1 / 20_000)  # false alarm below 1e-6


def _brute_bca(values: list[float], level: float = 0.95) -> tuple[float, float]:
    """All n^n resamples in a list, and Efron's formula with the jackknife written out."""
    n, mean = len(values), np.mean(values)
    means = np.sort([np.mean(drawn) for drawn in product(values, repeat=n)])
    equal = np.isclose(means, mean, rtol=0, atol=1e-12)
    z0 = stats.norm.ppf(((means < mean) & ~equal).mean() + equal.mean() / 2)
    jack = np.array([np.mean(values[:i] + values[i + 1 :]) for i in range(n)])
    away = jack.mean() - jack
    a = (away**3).sum() / (6 * (away**2).sum() ** 1.5)
    ends = [z0 + (z0 + z) / (1 - a * (z0 + z)) for z in stats.norm.ppf([(1 - level) / 2, (1 + level) / 2])]
    low, high = (means[math.ceil(stats.norm.cdf(end) * len(means)) - 1] for end in ends)
    return float(low), float(high)


@pytest.mark.parametrize("values", [[1.0, 2.0, 4.0], [0.3, 0.1, 0.2, 0.9], SKEWED, [5.0, 1.0, 1.0, 1.0, 1.0]])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_few_values_give_the_interval_of_all_resamples(values: list[float], level: float) -> None:
    found = bootstrap_interval(values, level)
    assert found.kind == "bca"
    assert (found.low, found.high) == pytest.approx(_brute_bca(values, level))


def test_many_values_give_scipys_bca_interval_up_to_the_draws() -> None:
    values = np.random.default_rng(3).exponential(size=40)
    found = bootstrap_interval(values)
    expected = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="BCa", rng=np.random.default_rng(0))
    interval = expected.confidence_interval
    assert found.kind == "bca"
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=0.02)  # its width is 0.7
    skew = found.high - found.mean - (found.mean - found.low)
    assert skew > 0.03  # exponential values have a long tail above, and the interval must follow it


def test_drawn_and_counted_resamples_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(4).exponential(size=7)
    counted = bootstrap_interval(values)
    monkeypatch.setattr("atoll.stats.intervals._ALL", 0)
    drawn = bootstrap_interval(values)
    assert (drawn.low, drawn.high) != (counted.low, counted.high)
    assert (drawn.low, drawn.high) == pytest.approx((counted.low, counted.high), abs=0.03 * (values.max()))


def test_the_same_numbers_in_any_order_give_the_same_interval() -> None:
    values = list(np.random.default_rng(1).normal(size=12))
    first, again = bootstrap_interval(values), bootstrap_interval(list(reversed(values)))
    assert (first.low, first.high) == pytest.approx((again.low, again.high), rel=1e-12)
    assert bootstrap_interval(values) == first


def test_a_bootstrap_of_three_seeds_covers_at_most_three_quarters() -> None:
    draws = np.random.default_rng(6).standard_normal((2000, 3))
    found = [bootstrap_interval(row) for row in draws]
    covered = np.mean([e.low <= 0 <= e.high for e in found])
    assert covered < 0.75 + 5 * math.sqrt(0.75 * 0.25 / 2000)  # false alarm below 1e-6


def test_bca_that_is_undefined_gives_percentiles() -> None:
    values = [0.0] * 39 + [1.0]  # the acceleration is so large that the upper end would turn around
    found = bootstrap_interval(values, level=1 - 1e-12)
    assert found.kind == "percentile"
    assert found.low == 0.0
    assert 0 < found.high <= 1


@pytest.mark.parametrize("interval", BOTH)
def test_equal_seeds_have_an_interval_without_width(interval: type) -> None:
    found = interval([0.1, 0.1, 0.1])
    assert found.std == pytest.approx(0, abs=1e-15)
    assert (found.low, found.high) == pytest.approx((0.1, 0.1), abs=1e-15)


@pytest.mark.parametrize("interval", BOTH)
def test_one_seed_has_no_interval_and_none_no_estimate(interval: type) -> None:
    one = interval([0.7])
    assert (one.mean, one.std, one.low, one.high, one.half, one.n, one.kind) == (0.7, None, None, None, None, 1, "none")
    with pytest.raises(DataError, match="at least one"):
        interval([])


@pytest.mark.parametrize("interval", BOTH)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_seed_that_diverged_leaves_no_interval_rather_than_a_better_one(interval: type, bad: float) -> None:
    found = interval([0.7, 0.8, bad])
    assert not math.isfinite(found.mean)
    assert found.n == 3
    assert all(math.isnan(x) for x in (found.std, found.low, found.high, found.half))


@pytest.mark.parametrize("interval", BOTH)
def test_a_level_must_be_a_share(interval: type) -> None:
    with pytest.raises(ConfigError, match="level: must be above 0 and below 1"):
        interval([1.0, 2.0], 95)


def test_a_bootstrap_needs_resamples() -> None:
    with pytest.raises(ConfigError, match="resamples: must be 1 or more"):
        bootstrap_interval([1.0, 2.0], resamples=0)


@given(whole, st.sampled_from([0.5, 2.0, 100.0]), st.integers(-100, 100))
def test_an_interval_moves_and_grows_with_the_data(values: list[float], scale: float, shift: int) -> None:
    for interval in BOTH:
        plain, moved = interval(values), interval([shift + scale * v for v in values])
        assert moved.kind == plain.kind
        assert moved.std == pytest.approx(scale * plain.std, abs=1e-9)
        assert (moved.low, moved.high) == pytest.approx(
            (shift + scale * plain.low, shift + scale * plain.high), abs=1e-8
        )
        assert moved.low - 1e-9 <= moved.mean <= moved.high + 1e-9


@given(whole)
def test_a_bootstrap_stays_inside_the_values_and_a_higher_level_is_never_narrower(values: list[float]) -> None:
    narrow, wide = bootstrap_interval(values, 0.8), bootstrap_interval(values, 0.95)
    assert min(values) - 1e-9 <= wide.low <= narrow.low + 1e-9
    assert narrow.high - 1e-9 <= wide.high <= max(values) + 1e-9


def test_the_usual_quantiles_are_scipys_to_the_last_bit():
    for freedom in range(1, 40):
        for tail in (0.975, 0.95):
            assert t_quantile(freedom, tail) == float(stdtrit(freedom, tail))
