"""Accountants against exact formulas, published values, each other, and slow oracles of their own."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import special, stats

from atoll.errors import ConfigError
from atoll.privacy import (
    ACCOUNTANTS,
    Analytic,
    Approximate,
    Composed,
    DistributedDiscreteGaussian,
    DistributedSkellam,
    Event,
    Gaussian,
    Laplace,
    Pld,
    Prv,
    Pure,
    Rdp,
    Sampled,
    SamplingScheme,
    accountant_for,
    gaussian_delta,
    gaussian_epsilon,
    signal_to_noise,
)
from atoll.privacy.analytic import gaussian_epsilons
from atoll.privacy.composition import Term
from atoll.privacy.rdp import discrete_gaussian, divergences, randomised_response, skellam
from atoll.privacy.with_replacement import multiplicity_bound
from tests.support.examples import few_examples
from tests.support.marks import slow

THREE = [Pld(), Prv(), Rdp()]


def poisson(noise: float, rounds: int, population: int = 1000, cohort: float = 10) -> Composed:
    return Composed(((Sampled(Gaussian(noise), "poisson", population, cohort), rounds),))


# Identities: what must it become when its knob is at zero?


@pytest.mark.parametrize("accountant", THREE, ids=lambda a: a.name)
def test_sampling_everyone_by_poisson_is_no_sampling(accountant: Pld) -> None:
    found = accountant.epsilon(poisson(2.0, 5, population=10, cohort=10), 1e-5)
    plain = accountant.epsilon(Composed(((Gaussian(2.0), 5),)), 1e-5)
    assert found == pytest.approx(plain, rel=2e-3)


def test_sampling_all_without_replacement_is_a_gaussian_of_twice_the_sensitivity() -> None:
    every = Composed(((Sampled(Gaussian(2.0), "without_replacement", 10, 10), 5),))
    assert Rdp().epsilon(every, 1e-5) == pytest.approx(Rdp().epsilon(Composed(((Gaussian(1.0), 5),)), 1e-5))


def test_drawing_the_only_unit_once_a_round_is_no_sampling() -> None:
    once = Composed(((Sampled(Gaussian(2.0), "with_replacement", 1, 1), 5),))
    plain = Analytic().epsilon(Composed(((Gaussian(2.0), 5),)), 0.99e-5)
    assert Analytic().epsilon(once, 1e-5) == pytest.approx(plain)
    assert Analytic().delta(once, 3.0) == pytest.approx(
        Analytic().delta(Composed(((Gaussian(2.0), 5),)), 3.0), rel=1e-6
    )


@pytest.mark.parametrize("accountant", ACCOUNTANTS.values(), ids=lambda a: a.name)
def test_four_gaussians_cost_what_one_of_half_the_noise_costs(accountant: Pld) -> None:
    four, one = Composed(((Gaussian(2.0), 4),)), Gaussian(1.0)
    assert accountant.epsilon(four, 1e-5) == pytest.approx(accountant.epsilon(one, 1e-5), rel=1e-6)


# The exact Gaussian


@pytest.mark.parametrize(("noise", "epsilon"), [(0.3, 2.0), (1.0, 1.0), (1.0, 0.1), (5.0, 0.5), (20.0, 0.1)])
def test_the_analytic_delta_is_the_integral_over_the_worst_set(noise: float, epsilon: float) -> None:
    x = np.linspace(-40 * noise, 1 + 40 * noise, 400_001)
    p, q = stats.norm.pdf(x, 1, noise), stats.norm.pdf(x, 0, noise)
    slow = np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), x)
    assert gaussian_delta(noise, epsilon) == pytest.approx(slow, rel=1e-5, abs=1e-15)


@given(st.floats(0.05, 50), st.floats(1e-12, 0.1))
def test_the_analytic_epsilon_and_delta_are_inverse(noise: float, delta: float) -> None:
    epsilon = gaussian_epsilon(noise, delta)
    assert gaussian_delta(noise, epsilon) <= delta
    if epsilon > 1e-6:
        assert gaussian_delta(noise, epsilon * (1 - 1e-6)) > delta


@pytest.mark.parametrize("noise", [0.7, 1.5, 6.0])
@pytest.mark.parametrize("how", ["everyone", "cyclic"])
def test_pld_and_prv_meet_the_exact_gaussian_from_above_and_rdp_stays_above(noise: float, how: str) -> None:
    event = Composed(
        ((Sampled(Gaussian(noise), how, 100, 5 if how == "cyclic" else 100, 4 if how == "cyclic" else 1), 8),)
    )  # type: ignore[arg-type]
    exact = Analytic().epsilon(event, 1e-6)
    assert exact <= Pld().epsilon(event, 1e-6) <= exact * 1.001
    assert exact <= Prv().epsilon(event, 1e-6) <= exact + 2 * Prv().error
    assert exact <= Rdp().epsilon(event, 1e-6) <= exact * 1.12
    assert Analytic().delta(event, exact) == pytest.approx(1e-6, rel=1e-6)


# A slow oracle for Poisson sampling: the privacy loss on a grid of our own


def oracle(noise: float, rate: float, rounds: int, epsilon: float, removed: bool) -> float:
    """delta of `rounds` rounds, by convolving the loss of one round `rounds` times: no outside library, both ways."""
    x = np.linspace(-12 * noise, 1 + 12 * noise, 200_001)
    without, mixed = (
        stats.norm.pdf(x, 0, noise),
        (1 - rate) * stats.norm.pdf(x, 0, noise) + rate * stats.norm.pdf(x, 1, noise),
    )
    top, bottom = (mixed, without) if removed else (without, mixed)
    step = 2e-3 / rounds
    cells = np.rint(np.log(top / bottom) / step).astype(int)
    low = int(cells.min())
    mass = np.bincount(cells - low, weights=top / top.sum())
    whole = mass
    for _ in range(rounds - 1):
        whole = (
            np.convolve(whole, mass)
            if len(whole) < 3000
            else np.fft.irfft(
                np.fft.rfft(whole, len(whole) + len(mass) - 1) * np.fft.rfft(mass, len(whole) + len(mass) - 1),
                len(whole) + len(mass) - 1,
            )
        )
    loss = (np.arange(len(whole)) + rounds * low) * step
    return float(np.sum(whole[loss > epsilon] * -np.expm1(epsilon - loss[loss > epsilon])))


@pytest.mark.parametrize(
    ("noise", "rate", "rounds", "epsilon"),
    [
        (0.8, 0.1, 2, 1.0),
        *(slow(*p) for p in [(0.8, 0.1, 1, 0.5), (1.0, 0.3, 3, 1.0), (2.0, 0.5, 4, 0.7)]),
    ],
)
def test_poisson_sampling_meets_an_oracle_of_our_own(noise: float, rate: float, rounds: int, epsilon: float) -> None:
    slow = max(oracle(noise, rate, rounds, epsilon, removed) for removed in (True, False))
    event = poisson(noise, rounds, 1000, 1000 * rate)
    assert Pld().delta(event, epsilon) == pytest.approx(slow, rel=5e-3)
    assert slow * 0.995 <= Prv().delta(event, epsilon) <= slow * 1.1
    assert Rdp().delta(event, epsilon) >= slow


def test_removing_a_unit_is_worse_than_adding_one_which_is_all_that_prv_composes() -> None:
    for noise, rate, rounds, epsilon in [(0.8, 0.1, 2, 1.0), (1.0, 0.3, 3, 1.0)]:
        assert oracle(noise, rate, rounds, epsilon, True) > oracle(noise, rate, rounds, epsilon, False)


# Published values


@pytest.mark.parametrize(
    ("noise", "epochs", "published"),
    [(1.3, 20, 1.34), (0.7, 70, 8.68)],  # Bu, Dong, Long and Su (2020), figure 4: the moments accountant on MNIST
)
def test_the_moments_accountant_of_the_literature(noise: float, epochs: int, published: float) -> None:
    """They turn Rényi divergences into epsilon the older way: min over a of D_a + log(1/delta) / (a - 1)."""
    orders = np.array([1 + x / 10 for x in range(1, 100)] + list(range(12, 64)), dtype=float)
    spent = divergences((Term(Gaussian(noise), epochs * 60000 // 256, rate=256 / 60000),), orders)
    assert float(np.min(spent + math.log(1e5) / (orders - 1))) == pytest.approx(published, abs=0.01)
    now = Rdp().epsilon(poisson(noise, epochs * 60000 // 256, 60000, 256), 1e-5)
    assert 0.75 * published < now < published  # the newer way is tighter


@pytest.mark.parametrize(("noise", "delta"), [(0.4, 1e-3), (1.0, 1e-5), (8.0, 1e-9)])
def test_the_exact_gaussian_is_that_of_dp_accounting(noise: float, delta: float) -> None:
    import dp_accounting

    theirs = dp_accounting.get_epsilon_gaussian(noise, delta)
    assert gaussian_epsilon(noise, delta) == pytest.approx(theirs, rel=1e-6)


# The accountants agree


@pytest.mark.parametrize(
    ("event", "loose"),
    [
        (poisson(1.0, 200), 1.5),
        slow(poisson(0.8, 100, 10**4, 100), 1.5),
        (Composed(((Laplace(20.0), 30),)), 1.1),
        (Composed(((Pure(0.1), 20),)), 1.15),
        (Composed(((Approximate(0.1, 1e-9), 20), (Gaussian(4.0), 2))), 1.15),
    ],
    ids=["poisson", "rare", "laplace", "pure", "mixed"],
)
def test_pld_and_prv_agree_within_1_percent_and_rdp_is_above(event: Event, loose: float) -> None:
    pld, prv, rdp = (a.epsilon(event, 1e-6) for a in THREE)
    assert prv == pytest.approx(pld, rel=0.01)
    assert pld <= rdp <= loose * pld
    assert [a.delta(event, pld) for a in THREE[:2]] == pytest.approx([1e-6, 1e-6], rel=0.3)


@pytest.mark.parametrize(
    "event",
    [
        poisson(50.0, 100_000, 10**6, 1000),
        poisson(20.0, 10_000, 1000, 1),
        Composed(((Laplace(5000.0), 20_000),)),
        Composed(((Pure(3e-5), 20_000),)),
        slow(poisson(0.05, 50, 100, 10)),
    ],
    ids=["quiet", "quieter", "laplace", "pure", "loud"],
)
def test_pld_is_tighter_than_rdp_also_where_a_round_loses_almost_nothing_or_everything(event: Event) -> None:
    assert Pld().epsilon(event, 1e-6) <= Rdp().epsilon(event, 1e-6)


def test_one_pure_mechanism_costs_its_epsilon() -> None:
    assert Pld().epsilon(Pure(1.5), 1e-12) == pytest.approx(1.5, rel=1e-3)
    assert Rdp().epsilon(Pure(1.5), 1e-12) == 1.5
    assert Rdp().epsilon(Composed(((Laplace(2.0), 3),)), 1e-12) == 1.5
    assert randomised_response(1.0, 1e6) == pytest.approx(1.0, rel=1e-5)


def test_a_delta_that_mechanisms_have_spent_already_leaves_no_promise() -> None:
    spent = Composed(((Approximate(0.1, 1e-6), 10),))
    assert Rdp().epsilon(spent, 0.99e-5) == math.inf
    assert Pld().epsilon(spent, 0.99e-5) == math.inf
    assert Rdp().epsilon(spent, 2e-5) < 2


def test_a_divergence_that_rounding_made_negative_is_not_free() -> None:
    tiny = divergences((Term(Gaussian(1e9), 1, rate=1e-9),), np.array([1.5, 2.0, 64.0]))
    assert (tiny >= 0).all()


# Integer noise, against the divergence of the distributions themselves


@pytest.mark.parametrize(("variance", "near"), [(4.0, 3.0), (60.0, 1.1)])
@pytest.mark.parametrize("shift", [1, 3])
def test_the_skellam_bound_holds_and_is_near(variance: float, near: float, shift: int) -> None:
    k = np.arange(-90, 91)  # the chance of k is I_k(variance) / e^variance
    log_p, log_q = np.log(special.ive(np.abs(k), variance)), np.log(special.ive(np.abs(k - shift), variance))
    event = DistributedSkellam(math.sqrt(variance) / shift, l2=shift, l1=shift)
    for a in (2, 4, 8):
        slow = special.logsumexp(a * log_p + (1 - a) * log_q) / (a - 1)
        assert slow <= float(skellam(event, np.array([float(a)]))[0]) <= near * slow


def test_the_skellam_bound_has_both_of_its_sides() -> None:
    two = np.array([2.0])
    assert skellam(DistributedSkellam(2.0, l2=1.0, l1=1.0), two) == pytest.approx(2 / 8 + (3 + 6) / 64)
    assert skellam(DistributedSkellam(1.0, l2=1.0, l1=0.1), two) == pytest.approx(2 / 2 + 0.3 / 2)


@pytest.mark.parametrize(("std", "clients"), [(0.8, 1), (0.8, 3), (1.5, 5)])
def test_the_discrete_gaussian_bound_holds(std: float, clients: int) -> None:
    k = np.arange(-200, 201)
    one = np.exp(-(k**2) / (2 * std**2))
    one /= one.sum()
    whole = one
    for _ in range(clients - 1):
        whole = np.convolve(whole, one, mode="same")
    event = DistributedDiscreteGaussian(std * math.sqrt(clients), l2=1.0, clients=clients)
    log = np.log(whole[np.abs(k) < 15])
    for a in (2.0, 5.0):
        slow = special.logsumexp(a * log[1:] + (1 - a) * log[:-1]) / (a - 1)
        bound = float(discrete_gaussian(event, np.array([a]))[0])
        assert slow <= bound * (1 + 1e-9)
        assert clients > 1 or bound == pytest.approx(slow, rel=0.05)


def test_integer_noise_is_as_good_as_continuous_noise_on_a_fine_grid() -> None:
    plain = Rdp().epsilon(Gaussian(2.0), 1e-5)
    assert Rdp().epsilon(DistributedDiscreteGaussian(2.0), 1e-5) == pytest.approx(plain)
    assert Rdp().epsilon(
        DistributedDiscreteGaussian(2.0, l2=1000.0, clients=100, dimension=10**6), 1e-5
    ) == pytest.approx(plain)
    assert Rdp().epsilon(DistributedSkellam(2.0, l2=1e4, l1=1e6), 1e-5) == pytest.approx(plain, rel=0.02)
    assert (
        Rdp().epsilon(DistributedDiscreteGaussian(2.0, l2=1.0, clients=100), 1e-5) == math.inf
    )  # 0.2 steps each: no bound


# Drawn with replacement


@pytest.mark.parametrize(
    ("draws", "population", "rounds", "slack"), [(5, 10, 6, 1e-2), (20, 100, 30, 1e-4), (2, 3, 4, 0.1)]
)
def test_the_sum_of_squares_is_passed_less_often_than_allowed(
    draws: int, population: int, rounds: int, slack: float
) -> None:
    one = np.zeros(draws**2 + 1)
    one[np.arange(draws + 1) ** 2] = stats.binom.pmf(np.arange(draws + 1), draws, 1 / population)
    whole = np.array([1.0])
    for _ in range(rounds):
        whole = np.convolve(whole, one)
    bound = multiplicity_bound(draws, population, rounds, slack)
    passed = float(whole[math.floor(bound) + 1 :].sum())
    exact = int(np.argmax(np.cumsum(whole) >= 1 - slack))
    assert passed <= slack
    assert bound <= 2.5 * exact + 2


@pytest.mark.parametrize("noise", [1.0, 3.0])
def test_a_run_drawn_with_replacement_costs_at_least_its_mean_over_all_draws(noise: float) -> None:
    """Who sees the draws as well gets delta = E delta(noise / √Σk²): ours is above that, and not far."""
    draws, population, rounds, epsilon = 3, 12, 8, 1.0
    one = np.zeros(draws**2 + 1)
    one[np.arange(draws + 1) ** 2] = stats.binom.pmf(np.arange(draws + 1), draws, 1 / population)
    whole = np.array([1.0])
    for _ in range(rounds):
        whole = np.convolve(whole, one)
    slow = sum(p * gaussian_delta(noise / math.sqrt(a), epsilon) for a, p in enumerate(whole) if a)
    event = Composed(((Sampled(Gaussian(noise), "with_replacement", population, draws), rounds),))
    found = Analytic().delta(event, epsilon)
    assert slow <= found <= 30 * slow
    assert Analytic().epsilon(event, found) >= 0.9 * epsilon


def test_a_unit_that_is_hardly_ever_drawn_still_costs_the_chance_that_it_is() -> None:
    event = Composed(((Sampled(Gaussian(0.1), "with_replacement", 10**6, 3), 8),))
    assert Analytic().delta(event, 1.0) >= 24e-6 * gaussian_delta(0.1, 1.0)


def test_drawing_with_replacement_costs_more_than_poisson_sampling_would_say() -> None:
    """pfl-research draws with replacement and accounts for Poisson sampling."""
    really = Composed(((Sampled(Gaussian(1.0), "with_replacement", 10**6, 1000), 1500),))
    claimed = Pld().epsilon(poisson(1.0, 1500, 10**6, 1000), 1e-6)
    assert claimed < 0.3 < 20 < Analytic().epsilon(really, 1e-6) < 30


# More rounds cost more, more noise less

noises, counts, deltas = st.floats(0.5, 8), st.integers(1, 400), st.floats(1e-9, 1e-3)


@few_examples
@given(noises, counts, deltas, st.sampled_from(["poisson", "without_replacement", "with_replacement", "everyone"]))
def test_more_rounds_cost_more_and_more_noise_costs_less(noise: float, count: int, delta: float, how: str) -> None:
    def spent(z: float, rounds: int) -> float:
        cohort = 50 if how == "everyone" else 5
        return Rdp().epsilon(Composed(((Sampled(Gaussian(z), how, 50, cohort), rounds),)), delta)  # type: ignore[arg-type]

    here = spent(noise, count)
    assert spent(noise, 2 * count) >= here
    assert spent(1.5 * noise, count) <= here
    assert Rdp().epsilon(Composed(((Gaussian(noise), count),)), delta / 2) >= Rdp().epsilon(
        Composed(((Gaussian(noise), count),)), delta
    )


@few_examples
@given(noises, counts, deltas)
@example(noise=0.5, count=304, delta=1e-5)  # the library's bound without replacement is above that of no sampling
def test_amplification_never_costs_more_than_none(noise: float, count: int, delta: float) -> None:
    plain = Rdp().epsilon(Composed(((Gaussian(noise), count),)), delta)
    assert Rdp().epsilon(poisson(noise, count, 50, 5), delta) <= plain * (1 + 1e-9)
    none = Rdp().epsilon(Composed(((Gaussian(noise / 2), count),)), delta)
    drawn = Composed(((Sampled(Gaussian(noise), "without_replacement", 50, 1), count),))
    assert Rdp().epsilon(drawn, delta) <= none * (1 + 1e-9)


def test_signal_to_noise_is_equation_1() -> None:
    draw = np.random.Generator(np.random.PCG64(0))
    update, std = draw.standard_normal(50_000), 0.2
    noise = std * draw.standard_normal(50_000)
    assert signal_to_noise(float(np.linalg.norm(update)), 50_000, std) == pytest.approx(
        float(np.linalg.norm(update) / np.linalg.norm(noise)), rel=0.02
    )
    assert signal_to_noise(1.0, 10, 0.0) == math.inf


@pytest.mark.parametrize("how", ["poisson", "everyone", "with_replacement", "without_replacement", "cyclic"])
@pytest.mark.parametrize("mechanism", [Gaussian, Laplace])
@pytest.mark.parametrize("noise", [1e-9, 1e-6, 1e-5, 1e9, 1e10])
@pytest.mark.parametrize("rounds", [1, 100])
def test_extreme_noise_gets_a_number_or_a_reason(
    how: SamplingScheme, mechanism: type[Gaussian] | type[Laplace], noise: float, rounds: int
) -> None:
    event = Composed(((Sampled(mechanism(noise), how, 1000, 1000 if how == "everyone" else 10), rounds),))
    if mechanism is Laplace and how == "poisson" and noise < 1:
        with pytest.raises(ConfigError, match=r"none can account this: an epsilon of .* more noise"):
            accountant_for(event, ACCOUNTANTS)
        return
    accountant = accountant_for(event, ACCOUNTANTS)
    assert accountant.epsilon(event, 1e-6) >= 0
    assert 0 <= accountant.delta(event, 1.0) <= 1


@pytest.mark.parametrize("noise", [1e-3, 1.01e-5, 0.99e-5, 1e-7, 1e-9, 1e-10])
def test_an_epsilon_of_little_noise_is_never_below_the_truth(noise: float) -> None:
    """The loss is normal with mean ρ = 1/2z² and standard deviation 1/z: at delta 1e-6 epsilon is above ρ + 4.7/z."""
    for found in (gaussian_epsilon(noise, 1e-6), *gaussian_epsilons([noise, 1.0], 1e-6)[:1]):
        assert 0.5 / noise**2 + 4.7 / noise <= found <= 0.5 / noise**2 + 5.3 / noise
    assert gaussian_delta(noise, 0.5 / noise**2 + 4.7 / noise) >= 1e-6
