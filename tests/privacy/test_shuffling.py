"""Amplification by shuffling, against the exact divergence of the two distributions that the proof reduces it to."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from atoll.errors import ConfigError
from atoll.privacy import (
    Approximate,
    Composed,
    Gaussian,
    Pld,
    Pure,
    Rdp,
    Sampled,
    Shuffled,
    amplified,
    explain,
    flatten,
    shuffled,
)
from atoll.privacy.composition import Term
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


# As an event.


def pair(epsilon0: float, clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Theorem 3.2's two distributions, outcome by outcome."""
    heads = math.exp(epsilon0) / (math.exp(epsilon0) + 1)
    p, q = [], []
    for c, weight in enumerate(binom.pmf(np.arange(clients), clients - 1, math.exp(-epsilon0))):
        a = np.arange(c + 2)
        stay, move = binom.pmf(a, c, 0.5), binom.pmf(a - 1, c, 0.5)
        p.append(weight * (heads * move + (1 - heads) * stay))
        q.append(weight * (heads * stay + (1 - heads) * move))
    return np.concatenate(p), np.concatenate(q)


@pytest.mark.parametrize(("epsilon0", "clients"), [(0.5, 40), (1.0, 50), (2.0, 60)])
def test_two_shuffles_cost_at_least_what_their_outcomes_tell(epsilon0: float, clients: int) -> None:
    """The divergence of every pair of outcomes of two rounds, at the epsilon that is claimed for both."""
    delta = 1e-2
    claimed = Pld().epsilon(Composed(((Shuffled(Pure(epsilon0), clients, delta / 4), 2),)), delta)
    assert claimed < 0.95 * 2 * epsilon0
    p, q = pair(epsilon0, clients)
    both = np.clip(np.outer(p, p) - math.exp(claimed) * np.outer(q, q), 0, None).sum()
    assert 0 < both <= delta


@pytest.mark.parametrize("rounds", [1, 3, 20])
def test_shuffles_compose_by_the_optimal_composition_theorem(rounds: int) -> None:
    """Kairouz, Oh and Viswanath (2015): rounds of randomised response, and what each may lose at once."""
    delta, event = 1e-4, Shuffled(Pure(1.0), 5000, 1e-4 / (2 * rounds))
    gained = amplified(event)
    assert isinstance(gained, Approximate)
    claimed = Pld().epsilon(Composed(((event, rounds),)), delta)

    def lost(epsilon: float) -> float:
        times, heads = np.arange(rounds + 1), 1 / (1 + math.exp(-gained.epsilon))
        p, q = binom.pmf(times, rounds, heads), binom.pmf(times, rounds, 1 - heads)
        kept = (1 - event.delta) ** rounds
        return float(1 - kept + kept * np.clip(p - math.exp(epsilon) * q, 0, None).sum())

    assert lost(claimed) <= delta
    assert lost(claimed - 1e-3 * rounds**0.5) > delta


@pytest.mark.parametrize("scheme", ["everyone", "without_replacement", "any", "poisson"])
def test_no_sampler_amplifies_a_shuffle_once_more(scheme: Any) -> None:
    event = Shuffled(Pure(1.0), 500, 1e-6)
    account = flatten(Sampled(event, scheme, 1000, 500 if scheme != "everyone" else 1000))
    assert account.terms == (Term(amplified(event), 1),)
    assert account.adjacency == "zero-out"


def test_a_unit_that_has_its_turn_every_second_round_is_in_half_the_shuffles() -> None:
    event = Shuffled(Pure(1.0), 500, 1e-6)
    account = flatten(Composed(((Sampled(event, "cyclic", 1000, 500, min_separation=2), 7),)))
    assert account.terms == (Term(amplified(event), 4),)


@pytest.mark.parametrize(("reports", "delta"), [(1, 1e-6), (2, 1e-6)])
def test_one_or_two_reports_are_no_crowd(reports: int, delta: float) -> None:
    event = Shuffled(Pure(1.0), reports, delta)
    assert amplified(event) == Pure(1.0)
    assert Pld().epsilon(event, 1e-5) == Pld().epsilon(Pure(1.0), 1e-5)
    assert "amplifies nothing" in explain(event)


@pytest.mark.parametrize(("reports", "delta"), [(0, 1e-6), (2.5, 1e-6), (100, 0.0), (100, 1.0)])
def test_a_shuffle_of_nobody_or_at_no_delta_is_refused(reports: int, delta: float) -> None:
    with pytest.raises(ConfigError, match=r"shuffled\."):
        Shuffled(Pure(1.0), reports, delta)
