"""Scores by hand and by identity; rules as FedEval and VFLAIR wrote them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.card import capability, fedeval_rules, scores

share = st.floats(0, 1)


@given(share, share)
def test_a_method_equal_to_pooled_data_has_all_effectiveness(local: float, central: float) -> None:
    assert scores.effectiveness(central, local, central) == (1.0 if central > local else float(central >= local))


@given(share, share)
def test_a_method_equal_to_training_alone_has_none_unless_there_is_no_way_to_go(local: float, central: float) -> None:
    assert scores.effectiveness(local, local, central) == (0.0 if central > local else 1.0)


@given(share, share, share)
def test_effectiveness_of_a_loss_is_that_of_its_negative(f: float, l: float, c: float) -> None:
    assert scores.effectiveness(-f, -l, -c, higher=False) == scores.effectiveness(f, l, c)
    assert 0 <= scores.effectiveness(f, l, c) <= 1


def test_effectiveness_by_hand() -> None:
    assert scores.effectiveness(0.86, 0.5, 0.9) == pytest.approx(0.9)
    assert scores.effectiveness(0.95, 0.5, 0.9) == 1.0  # better than pooled data: cut
    assert scores.effectiveness(0.3, 0.5, 0.9) == 0.0


@given(share, share)
def test_a_condition_that_changes_nothing_keeps_all(quality: float, chance: float) -> None:
    assert scores.retention(quality, quality, chance) == 1.0
    assert scores.retention(quality + 0.5, quality + 0.5, 0.0, higher=False) == 1.0


def test_what_diverges_or_guesses_keeps_nothing() -> None:
    assert scores.retention(math.nan, 0.9, 0.1) == 0.0
    assert scores.retention(0.1, 0.9, 0.1) == 0.0
    assert scores.retention(0.7, 0.9, 0.1) == pytest.approx(0.75)


def test_cost_is_a_half_for_the_baseline_and_falls() -> None:
    assert scores.cheapness(7.0, 7.0) == 0.5
    costs = [scores.cheapness(c, 10.0) for c in (0.0, 1.0, 10.0, 100.0, math.inf)]
    assert costs == sorted(costs, reverse=True)
    assert (costs[0], costs[-1]) == (1.0, 0.0)


@given(st.floats(0, 50), st.floats(0, 0.1))
def test_a_guarantee_scores_what_no_attack_can_gain(epsilon: float, delta: float) -> None:
    advantage = (math.exp(epsilon) - 1 + 2 * delta) / (math.exp(epsilon) + 1)
    assert scores.hidden(epsilon, delta) == pytest.approx(1 - advantage, abs=1e-12)


def test_chance_is_the_largest_class() -> None:
    assert scores.chance_level("accuracy", [[8, 1], [0, 1]]) == 0.8
    assert scores.chance_level("balanced_accuracy", [[8, 1], [0, 1]]) == 0.5
    assert scores.chance_level("loss", [[8, 1], [0, 1]]) == 0.0


def test_an_axis_is_the_mean_of_its_parts_seed_by_seed() -> None:
    assert scores.by_seed_mean([{0: 0.2, 1: 0.4}, {1: 0.8, 0: 1.0}]) == {0: 0.6, 1: pytest.approx(0.6)}
    assert scores.by_seed_mean([]) == {}


# FedEval's table 3 under its own rules: local 0.11319 and 0.51076, central 0.98614 and 0.88809.


@pytest.mark.parametrize(
    ("federated", "local", "central", "points"),
    [
        (0.98390, 0.11319, 0.98614, 5.0),  # FedSGD, mnist
        (0.43416, 0.11319, 0.98614, 0.0),  # FedSTC, mnist: more than 20 points below
        (0.81234, 0.48231, 0.84961, 3.0),  # FedAvg, femnist
        (0.66613, 0.70307, 0.92400, 0.0),  # FedSTC, celebA: below local
        (0.75578, 0.74447, 0.79263, 3.0),  # FedAvg, sent140
    ],
)
def test_fedeval_effectiveness_of_its_own_table(federated: float, local: float, central: float, points: float) -> None:
    assert fedeval_rules.fedeval_effectiveness(federated, local, central) == points


@pytest.mark.parametrize(
    ("uneven", "even", "points"), [(0.97843, 0.98651, 3.0), (0.81234, 0.83476, 2.0), (0.43416, 0.94421, 0.0)]
)
def test_fedeval_robustness_of_its_own_table(uneven: float, even: float, points: float) -> None:
    assert fedeval_rules.fedeval_robustness(uneven, even, None, None) == points
    assert fedeval_rules.fedeval_robustness(uneven, even, 0.0, 0.0) == points + 2


def test_fedeval_costs_of_its_own_table() -> None:
    rounds = fedeval_rules.fedeval_cost(839, 1396, fedeval_rules.BEST["rounds"])  # FedAvg against FedSGD, mnist
    assert rounds == pytest.approx(1 + 4 * (1396 - 839) / (1396 - 1))
    slower = fedeval_rules.fedeval_cost(482.6, 417.7, 0.0)  # FedAvg against FedSGD, Shakespeare, hours
    assert slower == pytest.approx(math.exp(1 - 482.6 / 417.7))
    assert slower < 1 < fedeval_rules.fedeval_cost(482.6, 417.7, 0.0, published=True)


def test_capability_falls_with_what_the_attack_gains_and_what_the_task_loses() -> None:
    assert capability.capability(0.1, 0.1, 0.9, 0.9) == 1.0
    by_hand = 1 / (1 + math.sqrt(0.5 * 0.4**2 + 0.5 * 0.3**2))
    assert capability.capability(0.5, 0.1, 0.6, 0.9) == pytest.approx(by_hand)
    assert capability.capability(0.5, 0.1, 0.6, 0.9, beta=0.0) == pytest.approx(1 / 1.4)
    assert capability.capability(0.5, 0.1, 0.6, 0.9, beta=1.0) == pytest.approx(1 / 1.3)
