"""Canaries in a run: an honest mechanism passes, and one that leaks more than it says is caught.

Keys are fixed. An honest run may be accused with probability 0.05 at most by the theorem; where it passes here the
bound is below two thirds of the claim, so that another key would not fail in a million. Frequencies and means are held
to five standard errors.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from atoll import tree
from atoll.attacks import Canaries, Planted
from atoll.core import Participation, Spec, Total, Transform, Update
from atoll.data.sampling import Cyclic, Everyone, FixedWithReplacement, Poisson, Sampler
from atoll.privacy import Analytic, Composed, Gaussian, Pld, Sampled, gaussian_epsilon
from atoll.transforms.adaptive import AdaptiveClip
from atoll.transforms.clip import ClipL1, ClipL2
from atoll.transforms.correlated import BandedNoise, TreeNoise
from atoll.transforms.discrete import Skellam
from atoll.transforms.integers import FixedPoint, SecureSum
from atoll.transforms.local_noise import LocalGaussian
from atoll.transforms.noise import GaussianNoise, LaplaceNoise
from atoll.tree import Tree
from tests.support.canary_rounds import DELTA, audited, chain_of, like


def told_apart(canaries: Canaries) -> float:
    """The distance between the scores of those in and those out, in standard deviations of those out."""
    inside, outside = canaries.score[canaries.inside], canaries.score[~canaries.inside]
    return float((inside.mean() - outside.mean()) / outside.std())


# Honest and not


class Halved(GaussianNoise):
    """Half the noise that its event says."""

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        return GaussianNoise(self.noise_multiplier / 2, sensitivity=self.sensitivity).server(total, state, key)


class Loose(ClipL2):
    """Lets updates of twice its bound through."""

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return ClipL2(2 * self.max_norm).client(update, state, own, key)


@dataclass(frozen=True)
class Twice:
    """Draws each client with twice the probability that it says."""

    probability: float

    def check(self, population: int) -> None:
        pass

    def sample(self, population: int, round: int, key: Tensor) -> tuple[Tensor, Participation]:
        ids, how = Poisson(2 * self.probability).sample(population, round, key)
        return ids, replace(how, probability=self.probability)


CLAIM = gaussian_epsilon(2.0 / 4**0.5, DELTA)  # noise_multiplier 2, four rounds, everyone: 3.14


@pytest.mark.parametrize("seed", range(4))
def test_honest_noise_passes(seed: int) -> None:
    found = audited((ClipL2(0.5), GaussianNoise(2.0)), Everyone(), 4, 8000, seed).verdict(DELTA)
    assert 1.0 < found["epsilon_lower"] < CLAIM * 2 / 3
    assert found == {
        "method": "canaries (Steinke, Nasr, Jagielski, 2023)",
        "epsilon_lower": found["epsilon_lower"],
        "confidence": 0.95,
        "delta": DELTA,
        "canaries": 8000,
        "guesses": found["guesses"],
        "correct": found["correct"],
    }


def test_an_account_hears_of_the_noise_that_canaries_stand_around() -> None:
    chain = chain_of(ClipL2(0.5), GaussianNoise(2.0), spec=Spec())
    planted = Planted.plant(4, like(400), Everyone(), 8, 0, torch.device("cpu"))
    audit = planted.around(chain, 0, Participation("everyone", 8, size=8))
    assert [mechanism.event() for mechanism in audit.mechanisms()] == [Gaussian(2.0)]


@pytest.mark.parametrize("seed", range(2))
def test_noise_silently_halved_is_caught(seed: int) -> None:
    layer = Halved(2.0)
    assert layer.event() == Gaussian(2.0)
    found = audited((ClipL2(0.5), layer), Everyone(), 4, 8000, seed)
    assert found.verdict(DELTA)["epsilon_lower"] > CLAIM + 0.5


def test_clipping_silently_off_is_caught() -> None:
    found = audited((Loose(0.5), GaussianNoise(2.0)), Everyone(), 4, 6000, size=6000)
    assert found.verdict(DELTA)["epsilon_lower"] > CLAIM + 0.3


@pytest.mark.slow
def test_a_sampler_that_draws_twice_as_many_as_it_says_is_caught() -> None:
    event = Composed(((Sampled(Gaussian(2.0), "poisson", 400, 180), 16),))
    claim = Pld().epsilon(event, DELTA)

    def bound(sampler: Sampler, by_law: bool = False) -> float:
        layers = (ClipL2(0.5), GaussianNoise(2.0))
        found = audited(layers, sampler, 16, 8000, population=400, by_law=by_law).verdict(DELTA)
        return float(found["epsilon_lower"])

    assert bound(Poisson(0.45)) < claim * 2 / 3
    assert bound(Twice(0.45)) > claim + 0.3
    assert bound(Twice(0.45), by_law=True) < claim * 2 / 3  # canaries that believe what it says cannot see it


# What an adversary gets to see is all there is


@pytest.mark.parametrize("knows", [True, False])
def test_scores_of_those_in_are_as_far_off_as_the_account_says(knows: bool) -> None:
    found = audited((ClipL2(0.5), GaussianNoise(2.0)), Everyone(), 4, 8000, knows=knows)
    # Four rounds at noise_multiplier 2: one deviation apart. Eight honest clients add a little spread of their own.
    assert told_apart(found) == pytest.approx(1.0, abs=5 * 2 / 8000**0.5)
    assert abs(float(found.score[~found.inside].mean())) < 5 * 2.0 / 4000**0.5


def test_what_others_sent_is_known_and_taken_away() -> None:
    # 207 numbers and noise of deviation 0.05: what eight clients send is louder than that, 0.1.
    known, unknown = (
        audited((ClipL2(0.5), GaussianNoise(0.1)), Everyone(), 1, 200, size=270, knows=k) for k in (True, False)
    )
    assert 8.0 < told_apart(known) < 13.0  # 1 / 0.1
    assert told_apart(unknown) < 7.0


def test_turns_in_a_cycle_are_matched() -> None:
    found = audited((ClipL2(0.5), GaussianNoise(1.5)), Cyclic(20, 4), 12, 8000, population=80)
    assert told_apart(found) == pytest.approx(3**0.5 / 1.5, abs=5 * 2 / 8000**0.5)  # three turns of twelve rounds


def test_draws_with_replacement_are_matched() -> None:
    found = audited((ClipL2(0.5), GaussianNoise(4.0)), FixedWithReplacement(16), 3, 8000, by_law=True)
    # K ~ Binomial(16, 1/8): E K^2 = 5.75, so 3 x 5.75 of signal over a deviation of 4 sqrt(3 x 5.75).
    assert told_apart(found) == pytest.approx((3 * 5.75) ** 0.5 / 4.0, abs=5 * 2.5 / 8000**0.5)


def test_banded_noise_is_read_where_it_is_independent() -> None:
    found = audited((ClipL2(0.5), BandedNoise(1.5, bands=4)), Cyclic(20, 4), 16, 8000, population=80)
    assert told_apart(found) == pytest.approx(4**0.5 / 1.5, abs=5 * 2.5 / 8000**0.5)  # as the account: sqrt(turns) / z
    claim = Analytic().epsilon(Sampled(found_event(BandedNoise(1.5, bands=4), 16, 4), "cyclic", 80, 20, 4), DELTA)
    assert found.verdict(DELTA)["epsilon_lower"] < claim


def found_event(layer: Transform, rounds: int, min_separation: int) -> object:
    spec = Spec(rounds=rounds, min_separation=min_separation, equal_weights=True, l2=0.5)
    return layer.bind(spec)[0].event()


def test_tree_noise_is_read_as_a_sum_over_the_run() -> None:
    found = audited((ClipL2(0.5), TreeNoise(4.0)), Cyclic(20, 2), 8, 8000, population=40)
    assert told_apart(found) == pytest.approx(4 / 4.0, abs=5 * 2 / 8000**0.5)  # four turns, one node's noise in all


def test_laplace_noise_passes() -> None:
    found = audited((ClipL1(0.5), LaplaceNoise(4.0)), Everyone(), 4, 8000)
    assert told_apart(found) == pytest.approx(4 / (4.0 * 8**0.5), abs=5 * 2 / 8000**0.5)
    assert found.verdict(DELTA)["epsilon_lower"] < 1.0  # four rounds of epsilon 1/4


def test_whole_numbers_and_a_secure_sum_are_passed_for_real() -> None:
    layers = (ClipL2(0.5), FixedPoint(step=1e-4), Skellam(2.0), SecureSum(bits=40))
    found = audited(layers, Everyone(), 2, 4000)
    reach = 0.5 / (0.5 + 1e-4 * tree.count(like(4000)) ** 0.5)  # noise is measured for rounding as well
    assert told_apart(found) == pytest.approx(reach * 2**0.5 / 2.0, abs=5 * 2 / 4000**0.5)


def test_an_adaptive_bound_is_followed() -> None:
    found = audited((AdaptiveClip(initial_max_norm=1.0, rate=0.0), GaussianNoise(2.0)), Everyone(), 4, 8000)
    assert told_apart(found) == pytest.approx((1 - 0.01) ** 0.5, abs=5 * 2 / 8000**0.5)


def test_local_noise_is_everywhere_and_is_made_for_real() -> None:
    found = audited((ClipL2(0.5), LocalGaussian(8.0, 1e-3)), Everyone(), 1, 300, size=300)
    assert found.score[~found.inside].std() > 1.0  # a hundred and fifty canaries' noise on every number
