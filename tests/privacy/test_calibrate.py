"""Noise for a budget, rounds for a budget, and pfl-research's own calibration."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.errors import ConfigError
from atoll.privacy import (
    ACCOUNTANTS,
    Analytic,
    Composed,
    Event,
    Gaussian,
    Laplace,
    Pld,
    PrivacyPlan,
    Rdp,
    Sampled,
    accountant_for,
    noise_for,
    rounds_for,
)
from tests.support import paths
from tests.support.examples import few_examples
from tests.support.marks import slow_among

GOLDEN = json.loads((paths.GOLDEN / "pfl_calibration.json").read_text())


@given(st.floats(0.01, 50), st.floats(1e-10, 1e-2), st.integers(1, 5000))
def test_calibrated_noise_keeps_the_budget_and_hardly_more(epsilon: float, delta: float, rounds: int) -> None:
    def event(z: float) -> Event:
        return Composed(((Gaussian(z), rounds),))

    z = noise_for(event, epsilon, delta, Analytic(), tolerance=1e-4)
    assert Analytic().epsilon(event(z), delta) <= epsilon
    assert Analytic().epsilon(event(z * (1 - 2e-4)), delta) > epsilon


@pytest.mark.parametrize(
    "sampling",
    slow_among(["poisson", "without_replacement", "with_replacement", "cyclic"], "without_replacement"),
)
def test_calibrate_then_account_is_a_round_trip_for_every_sampler(sampling: str) -> None:
    plan = PrivacyPlan(40, 1000, 20, sampling, min_separation=5 if sampling == "cyclic" else 1)  # type: ignore[arg-type]
    z = noise_for(plan.event, 2.0, 1e-5, Rdp(), tolerance=1e-3)
    assert Rdp().epsilon(plan.event(z), 1e-5) <= 2.0 < Rdp().epsilon(plan.event(z * 0.998), 1e-5)


@pytest.mark.parametrize("mechanism", ["laplace", "banded", "tree"])
def test_calibrate_then_account_is_a_round_trip_for_every_mechanism(mechanism: str) -> None:
    plan = PrivacyPlan(12, 1000, 20, "cyclic", mechanism, min_separation=4)  # type: ignore[arg-type]
    chosen = accountant_for(plan.event(1.0), ACCOUNTANTS)
    z = noise_for(plan.event, 2.0, 1e-5, chosen, tolerance=1e-3)
    assert chosen.epsilon(plan.event(z), 1e-5) <= 2.0 < chosen.epsilon(plan.event(z * 0.998), 1e-5)


@few_examples
@given(
    st.floats(0.1, 20),
    st.sampled_from([1e-3, 1e-5, 1e-7]),
    st.integers(1, 500),
    st.sampled_from([0.5, 0.2, 0.05, 0.01]),
)
def test_noise_for_a_drawn_cohort_keeps_the_budget_and_a_thousandth_less_does_not(
    epsilon: float, delta: float, rounds: int, rate: float
) -> None:
    plan, accountant = PrivacyPlan(rounds, 1000, 1000 * rate, "poisson"), Pld(interval=1e-3)
    z = noise_for(plan.event, epsilon, delta, accountant)
    assert accountant.epsilon(plan.event(z), delta) <= epsilon < accountant.epsilon(plan.event(0.999 * z), delta)


def test_few_fine_distributions_are_needed_for_the_least_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    real = Pld._epsilon
    monkeypatch.setattr(Pld, "_epsilon", lambda self, t, d: asked.append(self.interval) or real(self, t, d))  # type: ignore[func-returns-value]
    noise_for(PrivacyPlan(40, 200, 40, "poisson").event, 4.0, 1e-3, Pld())
    assert asked.count(1e-4) <= 4


def test_a_tiny_budget_that_no_noise_keeps_is_refused_with_advice() -> None:
    with pytest.raises(ConfigError, match=r"no noise multiplier up to 2\^24 keeps this budget. Use a larger epsilon"):
        noise_for(lambda z: Composed(((Gaussian(z), 10**9),)), 1e-6, 1e-12, Analytic())


@pytest.mark.parametrize(
    ("epsilon", "delta", "words"),
    [(0.0, 1e-5, "privacy.epsilon"), (-1.0, 1e-5, "above 0"), (1.0, 1.0, "privacy.delta")],
)
def test_bad_budgets_are_refused(epsilon: float, delta: float, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        noise_for(Gaussian, epsilon, delta, Analytic())
    with pytest.raises(ConfigError, match=words):
        rounds_for(lambda r: Gaussian(1.0), epsilon, delta, Analytic(), 5)


def test_an_accountant_that_cannot_is_refused_before_the_search() -> None:
    with pytest.raises(ConfigError, match="analytic cannot account this: Laplace is not Gaussian"):
        noise_for(Laplace, 1.0, 1e-5, Analytic())


@given(st.floats(1, 30), st.floats(0.05, 20), st.integers(1, 300))
def test_the_budget_affords_exactly_so_many_rounds(noise: float, epsilon: float, most: int) -> None:
    def event(rounds: int) -> Event:
        return Composed(((Gaussian(noise), rounds),))

    found = rounds_for(event, epsilon, 1e-5, Analytic(), most)
    affordable = [r for r in range(1, most + 1) if Analytic().epsilon(event(r), 1e-5) <= epsilon]
    assert found == len(affordable)


# pfl-research's CIFAR-10 calibration: epsilon 2, delta 1e-6, population 1e6, cohort 1,000, 1,500 rounds


@pytest.mark.parametrize("name", slow_among(["pld", "prv", "rdp"], "prv"))
def test_our_calibration_is_within_1_percent_of_pfl_research(name: str) -> None:
    """Epsilon falls with noise: ours lies between 0.99 and 1.01 of theirs if the budget does."""
    plan = PrivacyPlan(GOLDEN["rounds"], GOLDEN["population"], GOLDEN["cohort"], "poisson")
    accountant, theirs = ACCOUNTANTS[name], GOLDEN["noise"][name]
    low, high = (accountant.epsilon(plan.event(theirs * f), GOLDEN["delta"]) for f in (0.99, 1.01))
    assert high <= GOLDEN["epsilon"] < low


def test_the_whole_calibration_with_pld() -> None:
    plan = PrivacyPlan(GOLDEN["rounds"], GOLDEN["population"], GOLDEN["cohort"], "poisson")
    z = noise_for(plan.event, GOLDEN["epsilon"], GOLDEN["delta"], Pld())
    assert z == pytest.approx(GOLDEN["noise"]["pld"], rel=0.01)
    assert Pld().epsilon(plan.event(z), GOLDEN["delta"]) <= GOLDEN["epsilon"]


def test_the_whole_calibration_with_rdp() -> None:
    plan = PrivacyPlan(GOLDEN["rounds"], GOLDEN["population"], GOLDEN["cohort"], "poisson")
    assert noise_for(plan.event, 2.0, 1e-6, Rdp()) == pytest.approx(GOLDEN["noise"]["rdp"], rel=0.01)
    assert Rdp().epsilon(plan.event(0.6), 1e-6) == pytest.approx(GOLDEN["epsilon_at_noise_0.6"]["rdp"], rel=0.01)


def test_pfl_research_takes_the_scale_of_laplace_noise_upside_down_in_prv() -> None:
    """30 rounds of scale 50 without sampling: about 0.44 by its own RDP accountant, as by ours; 1,498 by its PRV."""
    event = Composed(((Laplace(50.0), 30),))
    assert Rdp().epsilon(event, 1e-6) == pytest.approx(GOLDEN["laplace"]["rdp"], rel=0.01)
    assert Pld().epsilon(event, 1e-6) <= GOLDEN["laplace"]["rdp"]
    assert GOLDEN["laplace"]["prv"] > 1000


# Plans


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PrivacyPlan(0, 10), "rounds: must be at least 1"),
        (lambda: PrivacyPlan(5, 10, sampling="poisson"), "cohort: poisson sampling needs a cohort size"),
        (
            lambda: PrivacyPlan(5, 10, 4, "cyclic", min_separation=3),
            "3 groups of 4 need 12 units, and there are 10. Use at most 2",
        ),
        (lambda: PrivacyPlan(5, 10, mechanism="magic"), "mechanism: 'magic' is unknown"),  # type: ignore[arg-type]
        (lambda: accountant_for(Gaussian(1.0), ACCOUNTANTS, "rpd"), "accountant: 'rpd' is unknown"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(make: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("sampling", "name"),
    [("poisson", "pld"), ("without_replacement", "rdp"), ("with_replacement", "analytic"), ("cyclic", "analytic")],
)
def test_auto_takes_the_first_accountant_that_knows_the_sampler(sampling: str, name: str) -> None:
    assert accountant_for(PrivacyPlan(5, 100, 10, sampling).event(1.0), ACCOUNTANTS).name == name  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_budget_that_hardly_any_noise_keeps_is_met_where_losses_outgrow_the_grid() -> None:
    def event(z: float) -> Event:
        return Composed(((Sampled(Gaussian(z), "poisson", 1000, 500), 5000),))

    assert Pld().supports(event(2.0**-10)) is not None
    noise = noise_for(event, 1e9, 1e-3, Pld())
    assert Pld().epsilon(event(noise), 1e-3) <= 1e9
