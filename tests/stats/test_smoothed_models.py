"""CRFL's certificate against integration, and what makes it larger."""

import math

import pytest

from atoll.errors import ConfigError
from atoll.stats import BackdoorThreat, certified_radius, vote_bounds
from tests.support import defence_oracles as oracles

ONE = BackdoorThreat(attackers=1, rate=0.1)


@pytest.mark.parametrize(("lower", "upper"), [(0.9, 0.05), (0.6, 0.39), (0.99, 0.01)])
@pytest.mark.parametrize(("max_norm", "std", "rounds"), [(1.0, 0.5, 0), (1.0, 2.0, 3), (5.0, 1.0, 10)])
def test_the_radius_is_the_papers(lower: float, upper: float, max_norm: float, std: float, rounds: int) -> None:
    threat = BackdoorThreat(attackers=3, rate=0.2, lipschitz=1.5)
    wanted = oracles.certified_radius(lower, upper, std, [max_norm / std] * rounds, [0.2] * 3, 1.5)
    assert certified_radius(lower, upper, max_norm, std, rounds, threat) == pytest.approx(wanted, rel=1e-6)


def test_nothing_is_certified_where_the_vote_is_open() -> None:
    assert certified_radius(0.5, 0.5, 1.0, 1.0, 5, ONE) == 0.0
    assert certified_radius(0.4, 0.6, 1.0, 1.0, 5, ONE) == 0.0


def test_more_rounds_more_noise_and_fewer_attackers_certify_more() -> None:
    few, many = (certified_radius(0.9, 0.1, 1.0, 1.0, t, ONE) for t in (1, 10))
    assert many > few
    assert certified_radius(0.9, 0.1, 1.0, 2.0, 1, ONE) > few
    assert certified_radius(0.9, 0.1, 1.0, 1.0, 1, BackdoorThreat(2, 0.1)) == pytest.approx(few / 2)


def test_bounds_of_votes_are_hoeffdings() -> None:
    width = math.sqrt(math.log(2 / 0.01) / 200)
    assert vote_bounds(80, 15, 100, 0.01) == pytest.approx((0.8 - width, 0.15 + width))
    assert vote_bounds(1, 1, 2, 0.01) == (0.0, 1.0)


def test_what_is_no_probability_is_refused() -> None:
    with pytest.raises(ConfigError, match="Use vote_bounds"):
        certified_radius(1.2, 0.0, 1.0, 1.0, 1, ONE)
