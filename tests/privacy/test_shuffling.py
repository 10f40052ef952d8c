"""Amplification by shuffling, against the exact divergence of the two distributions that the proof reduces it to."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from atoll.errors import ConfigError
from atoll.privacy import Approximate, Composed, Gaussian, Pld, Pure, Rdp, Sampled, shuffled
from atoll.privacy.shuffling import clones_delta, clones_epsilon, closed_form_epsilon


def exact_delta(epsilon0: float, clients: int, epsilon: float) -> float:
    """Theorem 3.2: C ~ Bin(n - 1, e^-epsilon0), A ~ Bin(C, 1/2), D ~ Bernoulli(e^epsilon0 / (e^epsilon0 + 1)).

    The hockey-stick divergence of (A + D, C - A + 1 - D) and (A + 1 - D, C - A + D), summed over every outcome.
    """
    heads = math.exp(epsilon0) / (math.exp(epsilon0) + 1)
    delta = 0.0
    for c, p in enumerate(binom.pmf(np.arange(clients), clients - 1, math.exp(-epsilon0))):
        a = np.arange(c + 2)
        stay, move = binom.pmf(a, c, 0.5), binom.pmf(a - 1, c, 0.5)
        one, two = heads * move + (1 - heads) * stay, heads * stay + (1 - heads) * move
        delta += p * np.clip(one - math.exp(epsilon) * two, 0, None).sum()
    return delta


@pytest.mark.parametrize(
    ("epsilon0", "clients"), [(0.1, 2), (0.1, 300), (0.5, 500), (1.0, 30), (1.5, 1000), (4.0, 200)]
)
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_the_divergence_is_that_of_all_outcomes(epsilon0: float, clients: int, share: float) -> None:
    slow = exact_delta(epsilon0, clients, share * epsilon0)
    quick = clones_delta(epsilon0, clients, share * epsilon0)
    assert slow <= quick <= slow * (1 + 1e-6) + 2e-13


@pytest.mark.parametrize(("epsilon0", "clients"), [(0.1, 300), (0.5, 500), (1.0, 800), (1.5, 1000), (3.0, 1000)])
def test_an_amplified_epsilon_holds_and_no_smaller_one_does(epsilon0: float, clients: int) -> None:
    delta = 1e-4
    event = shuffled(Pure(epsilon0), clients, delta)
    assert isinstance(event, Approximate)
    assert event.delta == delta
    assert exact_delta(epsilon0, clients, event.epsilon) <= delta
    assert exact_delta(epsilon0, clients, event.epsilon * 0.999) > delta


@pytest.mark.parametrize(("epsilon0", "clients"), [(0.5, 500), (1.0, 800), (1.5, 10_000), (4.0, 1_000_000)])
def test_the_closed_form_is_above_the_divergence(epsilon0: float, clients: int) -> None:
    assert clones_epsilon(epsilon0, clients, 1e-4) < closed_form_epsilon(epsilon0, clients, 1e-4)


def test_where_delta_is_too_small_to_be_summed_the_closed_form_stands() -> None:
    event = shuffled(Pure(1.0), 10**6, 1e-15)
    assert isinstance(event, Approximate)
    assert event.epsilon == closed_form_epsilon(1.0, 10**6, 1e-15)


def test_the_formula_by_hand() -> None:
    growth, n, delta = math.exp(2.0), 1_000_000, 1e-8
    by_hand = (
        (growth - 1) / (growth + 1) * (8 * math.sqrt(growth * math.log(4 / delta)) / math.sqrt(n) + 8 * growth / n)
    )
    assert closed_form_epsilon(2.0, n, delta) == pytest.approx(math.log(1 + by_hand), rel=1e-12)


def test_where_no_bound_says_anything_the_local_guarantee_stands() -> None:
    edge = math.log(10_000 / (16 * math.log(2 / 1e-15)))  # and delta is too small to be summed
    assert isinstance(shuffled(Pure(edge - 1e-6), 10_000, 1e-15), Approximate)
    assert shuffled(Pure(edge + 1e-6), 10_000, 1e-15) == Pure(edge + 1e-6)
    assert shuffled(Pure(1.0), 1, 1e-6) == Pure(1.0)
    assert shuffled(Pure(20.0), 100, 1e-6) == Pure(20.0)
    assert shuffled(Pure(2000.0), 100, 1e-6) == Pure(2000.0)


def test_more_clients_hide_better() -> None:
    events = [shuffled(Pure(1.0), n, 1e-6) for n in (10**3, 10**4, 10**5, 10**6)]
    epsilons = [event.epsilon for event in events if isinstance(event, Approximate)]
    assert len(epsilons) == 4
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[-2] / epsilons[-1] == pytest.approx(math.sqrt(10), rel=0.2)


@pytest.mark.parametrize("event", [Gaussian(1.0), Approximate(1.0, 1e-6), Sampled(Pure(1.0), "everyone", 9, 9)])
def test_no_epsilon_is_claimed_for_what_is_not_pure(event: object) -> None:
    assert shuffled(event, 10**6, 1e-6) == event  # type: ignore[arg-type]


def test_accountants_compose_shuffles_and_charge_less_than_for_local_reports() -> None:
    rounds, delta = 10, 1e-5
    amplified = Composed(((shuffled(Pure(1.0), 100_000, delta / (2 * rounds)), rounds),))
    local = Composed(((Pure(1.0), rounds),))
    assert Pld().epsilon(amplified, delta) < 0.3 < 5 < Pld().epsilon(local, delta)
    assert Rdp().supports(local) is None


@pytest.mark.parametrize(("clients", "delta"), [(0, 1e-6), (-3, 1e-6), (True, 1e-6), (2.5, 1e-6), (100, 0.0)])
def test_what_is_no_number_of_clients_or_no_delta_is_refused(clients: int, delta: float) -> None:
    with pytest.raises(ConfigError, match=r"shuffle\."):
        shuffled(Pure(1.0), clients, delta)
