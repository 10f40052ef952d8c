"""How many seeds would settle it: against published tables, an integral, and experiments that are really drawn."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atoll.errors import ConfigError
from atoll.stats import chance_to_settle, correlated_t, power, seeds_for_power, seeds_to_settle

A, B = [0.91, 0.93, 0.92, 0.95], [0.90, 0.90, 0.91, 0.92]


def _near(found: float, expected: float, draws: int) -> bool:
    """Within five standard errors of a share of so many draws: a false alarm has chance 6e-7."""
    return abs(found - expected) <= 5 * math.sqrt(expected * (1 - expected) / draws)


@pytest.mark.parametrize(("effect", "n"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10), (2.0, 5)])
def test_the_known_sizes_for_a_power_of_four_fifths(effect: float, n: int) -> None:
    """The textbook's paired t-test at 0.05 (Cohen's small, medium and large effects; the same from G*Power and R)."""
    assert seeds_for_power(effect) == n
    assert power(effect, n) >= 0.8 > power(effect, n - 1)


@pytest.mark.parametrize(("effect", "n", "alpha"), [(1.0, 5, 0.05), (0.5, 20, 0.05), (2.0, 3, 0.01), (0.0, 6, 0.1)])
def test_the_power_is_the_share_of_drawn_experiments_that_reject(effect: float, n: int, alpha: float) -> None:
    draws = effect + np.random.default_rng(11).standard_normal((40_000, n))
    rejected = (stats.ttest_1samp(draws, 0, axis=1).pvalue < alpha).mean()
    assert _near(rejected, power(effect, n, alpha), 40_000)


@pytest.mark.parametrize("n", [2, 3, 10, 100, 1000])
@pytest.mark.parametrize("effect", [0.0, 0.01, 0.3, 1.0, -1.0, 5.0, 12.0, -12.0, 50.0, 1e4])
def test_the_power_is_a_number_wherever_the_series_is_not(n: int, effect: float) -> None:
    """Given the spread, which is chi, the mean is normal: the mean over 20,000 quantiles of the spread."""
    t = stats.t.ppf(0.975, n - 1)
    bar = t * np.sqrt(stats.chi2.ppf((np.arange(20_000) + 0.5) / 20_000, n - 1) / (n - 1))
    centre = effect * math.sqrt(n)
    assert power(effect, n) == pytest.approx(
        (stats.norm.sf(bar - centre) + stats.norm.cdf(-bar - centre)).mean(), abs=1e-4
    )


def test_no_effect_has_the_power_of_a_false_alarm_and_never_settles() -> None:
    assert power(0, 7, alpha=0.03) == pytest.approx(0.03)
    assert seeds_for_power(0) is None
    assert seeds_for_power(0.05) is None
    assert seeds_for_power(0.05, cap=5000) == 3142


def test_the_direction_of_an_effect_does_not_matter() -> None:
    assert seeds_for_power(-0.7) == seeds_for_power(0.7)


def test_seeds_to_settle_is_the_first_size_at_which_the_verdict_stands() -> None:
    """Seeds with exactly this mean and spread are made, and tested."""
    d = np.subtract(A, B)
    m, s = d.mean(), d.std(ddof=1)

    def surest(n: int, rope: float, rho: float) -> float:
        like = np.resize([1.0, -1.0], n) if n % 2 == 0 else np.concatenate([np.resize([1.0, -1.0], n - 1), [0.0]])
        like = m + s * like / like.std(ddof=1)
        found = correlated_t(like, np.zeros(n), rope=rope, rho=rho)
        return max(found.p_a, found.p_equal, found.p_b)

    for rope, rho in ((0.01, 0.0), (0.018, 0.0), (0.025, 0.0), (0.04, 0.0), (0.012, 0.05)):
        n = seeds_to_settle(A, B, rope=rope, rho=rho)
        assert n is not None
        assert surest(n, rope, rho) >= 0.95
        assert n == 2 or surest(n - 1, rope, rho) < 0.95


def test_what_will_never_be_settled_is_none() -> None:
    assert seeds_to_settle(A, B, rope=0.02, rho=0) is None  # the mean lies on the edge of the rope
    assert seeds_to_settle(A, B, rope=0.01, rho=0.5) is None  # the correlation leaves too much spread
    assert seeds_to_settle(A, B, rope=0.0195, rho=0, cap=100) is None
    assert seeds_to_settle(A, B, rope=0.0195, rho=0, cap=3000) > 1000


def test_certain_differences_are_settled_by_two_seeds() -> None:
    for a, b in (([1.5, 2.5], [1.0, 2.0]), ([1.0, 2.0], [1.0, 2.0]), ([1.25, 2.25], [1.0, 2.0])):
        assert seeds_to_settle(a, b, rope=0.25, rho=0) == 2
        assert chance_to_settle(a, b, 5, rope=0.25) == 1


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=8), st.integers(0, 9))
def test_it_is_settled_now_exactly_if_no_more_seeds_are_needed(values: list[tuple[int, int]], rope: int) -> None:
    a, b = ([float(v[i]) for v in values] for i in (0, 1))
    needed = seeds_to_settle(a, b, rope=rope, rho=0)
    settled = correlated_t(a, b, rope=rope, rho=0).verdict() != "undecided"
    assert settled == (needed is not None and needed <= len(a))
    assert chance_to_settle(a, b, len(a), rope=rope) == settled
    assert seeds_to_settle(b, a, rope=rope, rho=0) == needed


@pytest.mark.parametrize(("n", "rope"), [(5, 0.01), (6, 0.01), (20, 0.01), (20, 0.03)])
def test_the_chance_to_settle_is_that_of_seeds_really_drawn(n: int, rope: float) -> None:
    """Spread, mean and every new seed drawn one by one, then the test on all of them."""
    draws, rng = 4000, np.random.default_rng(2)
    d = np.subtract(A, B)
    n0, settled = len(d), 0
    for _ in range(draws):
        sigma = math.sqrt((n0 - 1) * d.var(ddof=1) / rng.chisquare(n0 - 1))
        mu = rng.normal(d.mean(), sigma / math.sqrt(n0))
        both = np.concatenate([d, rng.normal(mu, sigma, n - n0)])
        m, scale = both.mean(), both.std(ddof=1) / math.sqrt(n)
        p_a, p_b = stdtr(n - 1, (m - rope) / scale), stdtr(n - 1, (-m - rope) / scale)
        settled += max(p_a, p_b, 1 - p_a - p_b) >= 0.95
    found = chance_to_settle(A, B, n, rope=rope)
    assert 0.1 < found < 0.98
    assert _near(settled / draws, found, draws * 20_000 // 24_000)  # both are drawn


def stdtr(df: int, t: float) -> float:
    return float(stats.t._cdf(t, df))  # without the checks, which take longer than the rest


def test_enough_seeds_settle_nearly_anything_with_a_rope() -> None:
    assert chance_to_settle(A, B, 100_000, rope=0.01) > 0.97
    assert chance_to_settle(A, B, 30, rope=0.01) == chance_to_settle(A, B, 30, rope=0.01)


@given(st.floats(0.3, 3), st.floats(0.55, 0.95))
def test_the_size_has_the_power_and_one_less_has_not(effect: float, chance: float) -> None:
    n = seeds_for_power(effect, chance)
    assert n is not None
    assert power(effect, n) >= chance
    assert n == 2 or power(effect, n - 1) < chance


def test_arguments_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="two pairs or more"):
        power(1.0, 1)
    with pytest.raises(ConfigError, match="effect: must be a finite number"):
        seeds_for_power(math.nan)
    with pytest.raises(ConfigError, match="chance: must be above 0"):
        seeds_for_power(1.0, chance=80)
    with pytest.raises(ConfigError, match="at least the 4 at hand"):
        chance_to_settle(A, B, 3, rope=0.01)
    with pytest.raises(ConfigError, match=r"sure: must be above 0\.5"):
        seeds_to_settle(A, B, rope=0.01, rho=0, sure=0.3)
    with pytest.raises(ConfigError, match="cap: must be 2 or more"):
        seeds_for_power(1.0, cap=1)
