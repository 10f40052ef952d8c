"""Losses by arrays: against the library that computes them one by one, and the exact Gaussian."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.privacy import Composed, Gaussian, Pld, Sampled, gaussian_epsilon
from atoll.privacy.analytic import gaussian_epsilons
from atoll.privacy.fast_pld import LossDistribution, subsampled_gaussian
from tests.support.examples import few_examples


def test_losses_that_are_certain_add_up_and_their_epsilon_is_the_sum() -> None:
    one = LossDistribution(0.5, 1, np.array([0.0, 1.0]), 0.0)  # always 1.0
    assert one.self_compose(4).epsilon(1e-300) == math.inf  # what was cut off is an infinite loss
    assert one.self_compose(4).epsilon(1e-9) == pytest.approx(4.0)
    assert one.delta(0.4) == pytest.approx(1 - math.exp(-0.6))


@few_examples
@given(st.floats(0.4, 30), st.floats(1e-3, 0.999), st.integers(1, 300), st.sampled_from([1e-3, 1e-6, 1e-9]))
def test_many_rounds_cost_what_the_library_says(z: float, rate: float, rounds: int, delta: float) -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    grid = min(2e-3, rate * math.sqrt(math.expm1(z**-2)) / 5)
    theirs = pld.from_gaussian_mechanism(z, value_discretization_interval=grid, sampling_prob=rate).self_compose(rounds)
    ours = [x.self_compose(rounds) for x in subsampled_gaussian(z, rate, grid)]
    epsilon = max(x.epsilon(delta) for x in ours)
    assert epsilon == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=1e-4, abs=1e-9)
    assert max(x.delta(epsilon) for x in ours) <= delta * (1 + 1e-9)


def test_one_round_has_the_masses_of_the_library_in_both_directions() -> None:
    from dp_accounting.pld import privacy_loss_distribution as pld

    theirs = pld.from_gaussian_mechanism(1.3, value_discretization_interval=1e-3, sampling_prob=0.2)
    for ours, pmf in zip(subsampled_gaussian(1.3, 0.2, 1e-3), (theirs._pmf_remove, theirs._pmf_add), strict=True):
        assert ours.lowest == pmf._lower_loss
        np.testing.assert_allclose(ours.mass, pmf._probs, rtol=0, atol=1e-11)


def test_a_cohort_of_nearly_everyone_costs_what_everyone_costs() -> None:
    drawn = Composed(((Sampled(Gaussian(5.0), "poisson", 10**9, 10**9 - 1), 20),))
    assert Pld(quick=True).epsilon(drawn, 1e-6) == pytest.approx(gaussian_epsilon(5 / math.sqrt(20), 1e-6), rel=1e-4)


def test_losses_too_large_for_an_exponential_are_still_told() -> None:
    huge = Composed(((Sampled(Gaussian(0.05), "poisson", 100, 20), 5),))
    spent = Pld(interval=0.1, quick=True).epsilon(huge, 1e-5)
    assert 200 * 5 < spent < math.inf
    assert Pld(interval=0.1, quick=True).delta(huge, spent) == pytest.approx(1e-5, rel=1e-6)


def test_rounds_of_different_noise_cost_between_all_of_the_one_and_all_of_the_other() -> None:
    loud, quiet = (Sampled(Gaussian(z), "poisson", 1000, 50) for z in (2.0, 1.0))
    coarse = Pld(interval=1e-3, quick=True)
    mixed = coarse.epsilon(Composed(((loud, 20), (quiet, 20))), 1e-5)
    assert coarse.epsilon(Composed(((loud, 40),)), 1e-5) < mixed < coarse.epsilon(Composed(((quiet, 40),)), 1e-5)
    halves = coarse.epsilon(Composed(((loud, 15), (loud, 25))), 1e-5)
    assert halves == pytest.approx(coarse.epsilon(Composed(((loud, 40),)), 1e-5), rel=1e-6)


@given(st.lists(st.floats(0.05, 100), min_size=2, max_size=5), st.floats(1e-12, 0.3))
def test_epsilons_at_once_are_those_one_by_one(noises: list[float], delta: float) -> None:
    for z, found in zip(noises, gaussian_epsilons(noises, delta, 1e-6), strict=True):
        assert found == pytest.approx(gaussian_epsilon(z, delta, 1e-6), rel=1e-6, abs=1e-12)
        assert found >= gaussian_epsilon(z, delta) * (1 - 1e-12)
