"""What canaries are made of: their places and coins, their way through a chain, their turns, and going on after a stop.

Keys are fixed. Frequencies are held to five standard errors.
"""

import math

import pytest
import torch

from atoll import rng, tree
from atoll.attacks import Canaries, drawn, without_noise
from atoll.attacks import canary_sampling as turns
from atoll.attacks import canary_updates as passing
from atoll.attacks.canary_updates import AMPLITUDE
from atoll.core import Chain, Participation, Spec, Total, Transform, Update
from atoll.core.types import Scheme
from atoll.data.availability import Available
from atoll.data.sampling import Cyclic, CyclicPoisson, Everyone, Fixed, FixedWithReplacement, Fraction, Poisson, Sampler
from atoll.errors import ConfigError
from atoll.transforms import TRANSFORMS
from atoll.transforms.adaptive import AdaptiveClip
from atoll.transforms.clip import ClipL1, ClipL2, ClipLayers, ClipPerLayer
from atoll.transforms.compress import Entropy, HalfPrecision, MaskLayers, TopK
from atoll.transforms.correlated import BandedNoise
from atoll.transforms.integers import FixedPoint, SecureSum
from atoll.transforms.local_noise import LocalGaussian
from atoll.transforms.noise import GaussianNoise
from atoll.transforms.published_noise import WeakDp
from atoll.transforms.weights import EqualWeights
from tests.support.canary_rounds import DELTA, KEY, SMALL, Run, chain_of, like

# Passing through the chain

PASSED: dict[str, Transform] = {
    "equal_weights": EqualWeights(),
    "clip_l2": ClipL2(0.3),
    "clip_l1": ClipL1(0.3),
    "clip_per_layer": ClipPerLayer(0.3),
    "clip_layers": ClipLayers({"w": 0.1, "rest": 0.4}),
    "adaptive_clip": AdaptiveClip(initial_max_norm=0.7),
    "fixed_point": Chain((ClipL2(0.25), FixedPoint(2.0**-6))),
    "secure_sum": Chain((ClipL2(0.25), FixedPoint(2.0**-6), SecureSum(20))),
    "top_k": TopK(0.1),
    "half": HalfPrecision(),
    "mask_layers": MaskLayers(("*",)),
    "entropy": Chain((TopK(0.1), Entropy())),
    "weak_dp": WeakDp(0.3),
}


def test_every_layer_that_is_taken_on_trust_is_tested() -> None:
    assert set(PASSED) == {name for name, kind in TRANSFORMS.items() if kind.keeps_zeros}


@pytest.mark.parametrize("name", sorted(PASSED))
def test_one_number_for_each_tensor_is_exactly_the_whole_update(name: str) -> None:
    inner = PASSED[name]
    layers = inner.transforms if isinstance(inner, Chain) else (inner,)
    chain = chain_of(*layers, spec=Spec(size=25, cohort=9))
    at = Canaries.plant(25, SMALL, KEY, "cpu").places
    state, memory = chain.init(SMALL)
    for i in range(25):
        which = torch.tensor([i])
        small = passing._sparse(which, at, chain, state, passing._keys(which, KEY))
        large = passing._dense(which, at, chain, state, passing._keys(which, KEY))
        value = tree.map(lambda x: x[0], passing._whole(which, at))
        assert float(tree.norm(value)) == AMPLITUDE
        sent, _ = chain.client(Update(value, torch.ones(())), state, memory, passing._keys(which, KEY)[0])
        for a, b, c in zip(*map(tree.leaves, (small.value, large.value, sent.value)), strict=True):
            assert a.dtype == b.dtype == c.dtype
            assert a.shape == b.shape == c.shape
            assert torch.equal(b, c)
            assert torch.equal(a, b)
        assert small.weight == large.weight == small.count == large.count == 1


def test_whole_updates_are_made_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = chain_of(ClipL2(0.5), LocalGaussian(1.0, 1e-3), spec=Spec())
    planted = Canaries.plant(20, SMALL, KEY, "cpu")
    how, state = Participation("everyone", 5, 5), chain.init(SMALL)[0]
    whole = planted.contribution(0, how, chain, state, KEY)
    monkeypatch.setattr(passing, "DENSE", 60)
    parts = planted.contribution(0, how, chain, state, KEY)
    assert whole is not None
    assert parts is not None
    assert whole.count == parts.count == planted.inside.sum()
    for a, b in zip(tree.leaves(whole.value), tree.leaves(parts.value), strict=True):
        torch.testing.assert_close(a, b)


def test_those_in_add_the_bound_in_their_places_and_nothing_else() -> None:
    chain = chain_of(ClipL2(0.5), GaussianNoise(1.0), spec=Spec())
    planted = Canaries.plant(12, SMALL, KEY, "cpu")
    often = torch.tensor([0, 1, 2] * 4)
    total = planted.contribution(0, Participation("everyone", 5, 5), chain, chain.init(SMALL)[0], KEY, often)
    assert total is not None
    added = planted.places.read(total.value)
    torch.testing.assert_close(added, 0.5 * often.double() * planted.inside, rtol=1e-5, atol=0.0)
    assert sum(float(x.abs().sum()) for x in tree.leaves(total.value)) == pytest.approx(
        0.5 * float((often * planted.inside).sum()), rel=1e-5
    )
    assert total.count == total.weight == (often * planted.inside).sum()


def test_nobody_drawn_is_nothing_to_add() -> None:
    chain = chain_of(ClipL2(0.5), GaussianNoise(1.0), spec=Spec())
    planted = Canaries.plant(12, SMALL, KEY, "cpu")
    none = torch.zeros(12, dtype=torch.int64)
    assert planted.contribution(0, Participation("everyone", 5, 5), chain, chain.init(SMALL)[0], KEY, none) is None


def test_places_differ_and_coins_are_fair() -> None:
    planted = Canaries.plant(9000, like(10_000), KEY, "cpu")
    at = planted.places
    assert len({(int(a), int(b)) for a, b in zip(at.leaf, at.at, strict=True)}) == 9000
    sizes = torch.tensor([x.numel() for x in tree.leaves(like(10_000))])
    assert bool((at.at < sizes[at.leaf]).all())
    for coin in (planted.inside.double(), (at.sign == 1).double(), (planted.inside == (at.sign == 1)).double()):
        assert abs(float(coin.mean()) - 0.5) < 5 * 0.5 / 9000**0.5
    again = Canaries.plant(9000, like(10_000), KEY, "cpu")
    assert torch.equal(again.inside, planted.inside)
    assert torch.equal(again.places.at, at.at)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="26 canaries need a number of the update each, and it has 25"):
        Canaries.plant(26, SMALL, KEY, "cpu")
    with pytest.raises(ConfigError, match=r"privacy\.canaries: 0 canaries"):
        Canaries.plant(0, SMALL, KEY, "cpu")
    planted = Canaries.plant(5, SMALL, KEY, "cpu")
    with pytest.raises(ConfigError, match="no mechanism"):
        planted.contribution(0, Participation("everyone", 5, 5), chain_of(spec=Spec()), {"0": {}}, KEY)
    with pytest.raises(ConfigError, match="nobody can say how often"):
        turns.sample_from_distribution(Participation("available", 5), 5, 0, KEY, KEY)


# Taking part

SAMPLERS = [
    Everyone(),
    Fixed(3),
    Fraction(0.3),
    Poisson(0.3),
    Poisson(size=4),
    FixedWithReplacement(6),
    Cyclic(2, 3),
    CyclicPoisson(2.0, 3),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: type(s).__name__)
def test_canaries_come_as_often_as_clients(sampler: Sampler) -> None:
    population, count, rounds = 10, 300, 60
    clients, by_sampler, by_law = torch.zeros(population), torch.zeros(count), torch.zeros(count)
    squares = [0.0, 0.0, 0.0]
    for r in range(rounds):
        ids, how = sampler.sample(population, r, KEY)
        drawn_now = drawn(sampler, population, count, r, KEY)
        law_now = turns.sample_from_distribution(how, count, r, KEY, rng.fold_name(KEY, r))
        for i, (total, now) in enumerate(
            [(clients, torch.bincount(ids, minlength=population)), (by_sampler, drawn_now), (by_law, law_now)]
        ):
            total += now
            squares[i] += float((now**2).double().mean())
    rate = float(clients.mean()) / rounds
    spread = (
        5 * (rate * (1 + rate) / (count * rounds)) ** 0.5
        + 5 * float(isinstance(sampler, Poisson | CyclicPoisson)) * (rate / (population * rounds)) ** 0.5
    )
    for total, square in ((by_sampler, squares[1]), (by_law, squares[2])):
        assert float(total.mean()) / rounds == pytest.approx(rate, abs=spread + 1e-9)
        assert square / rounds == pytest.approx(squares[0] / rounds, rel=0.15)


@pytest.mark.parametrize(
    "how",
    [
        Participation("cyclic", 9, size=2, min_separation=3),
        Participation("cyclic_poisson", 9, probability=0.7, min_separation=3),
    ],
    ids=lambda how: how.scheme,
)
def test_a_canary_keeps_to_its_group(how: Participation) -> None:
    came = torch.stack([turns.sample_from_distribution(how, 50, r, KEY, rng.fold_name(KEY, r)) for r in range(30)])
    for phase in range(3):
        came_then = came[phase::3].sum(0) > 0
        assert not bool((came_then & (came.sum(0) > came[phase::3].sum(0))).any())


@pytest.mark.parametrize(
    ("scheme", "known"),
    [("poisson", False), ("cyclic_poisson", False), ("fixed", False), ("cyclic", True), ("everyone", True)],
)
def test_who_was_drawn_is_known_only_where_the_account_does_not_rely_on_it(scheme: Scheme, known: bool) -> None:
    assert turns.public(Participation(scheme, 9)) == known


def test_clients_that_come_and_go_have_canaries_that_come_and_go() -> None:
    trace = torch.tensor([[True, False, True], [False, False, True]])
    assert drawn(Available(trace), 3, 5, 0, KEY).tolist() == [1, 0, 1, 1, 0]
    assert drawn(Available(trace), 3, 5, 1, KEY).tolist() == [0, 0, 1, 0, 0]


# Going on


@pytest.mark.parametrize(
    ("layers", "sampler"),
    [((ClipL2(0.5), GaussianNoise(1.0)), Poisson(0.5)), ((ClipL2(0.5), BandedNoise(1.0, bands=3)), Cyclic(2, 3))],
    ids=["gaussian", "banded"],
)
def test_scores_go_on_where_a_checkpoint_left_them(layers: tuple[Transform, ...], sampler: Sampler) -> None:
    update = like(400)
    spec = Spec(rounds=10, size=tree.count(update), min_separation=getattr(sampler, "min_separation", 1), cohort=2)
    chain = chain_of(*layers, spec=spec)
    whole = Canaries.plant(200, update, KEY, "cpu")
    Run(chain, sampler, update, whole).rounds(0, 10)
    first, second = Canaries.plant(200, update, KEY, "cpu"), Canaries.plant(200, update, KEY, "cpu")
    state = Run(chain, sampler, update, first).rounds(0, 5)
    second = second.at(first.state())
    Run(chain, sampler, update, second).rounds(5, 10, state)
    assert torch.equal(second.score, whole.score)
    assert second.verdict(DELTA) == whole.verdict(DELTA)
    assert not torch.equal(first.score, whole.score)


def test_scores_that_say_nothing_refute_nothing() -> None:
    for count in (1, 2, 3, 25):
        found = Canaries.plant(count, SMALL, KEY, "cpu").verdict(DELTA)
        assert found["epsilon_lower"] == 0.0
        assert found["canaries"] == count


def test_without_noise_only_the_noise_is_missing() -> None:
    chain = chain_of(AdaptiveClip(initial_max_norm=0.5), GaussianNoise(1.0), spec=Spec(rounds=1))
    state, _ = chain.init(SMALL)
    quiet = Chain((*chain.transforms[:2], GaussianNoise(0.0, sensitivity=1.0)))
    total = Total({**tree.map(torch.ones_like, SMALL), "within": torch.ones(())}, torch.tensor(4.0), torch.tensor(4.0))
    a, b = (c.server(total, state, KEY)[0] for c in (without_noise(chain), quiet))
    for x, y in zip(tree.leaves(a.value), tree.leaves(b.value), strict=True):
        assert torch.equal(x, y)
    assert math.isclose(float(tree.leaves(a.value)[0].flatten()[0]), 0.5)
