"""Canaries in a run: an honest mechanism passes, and one that leaks more than it says is caught.

Keys are fixed. An honest run may be accused with probability 0.05 at most by the theorem; where it passes here the
bound is below two thirds of the claim, so that another key would not fail in a million. Frequencies and means are held
to five standard errors.
"""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.func import vmap

from atoll import rng, tree
from atoll.audit import Canaries, drawn, passing, turns, without_noise
from atoll.audit.passing import AMPLITUDE, KEEPS_ZEROS
from atoll.core import Chain, Participation, Spec, Total, Transform, Update
from atoll.data.availability import Available
from atoll.data.sampling import Cyclic, Everyone, Fixed, FixedWithReplacement, Fraction, Poisson, Sampler
from atoll.errors import ConfigError
from atoll.privacy import Analytic, Composed, Gaussian, Pld, Sampled, gaussian_epsilon
from atoll.transforms.adaptive import AdaptiveClip
from atoll.transforms.clip import ClipL1, ClipL2, ClipLayers, ClipPerLayer
from atoll.transforms.compress import TopK
from atoll.transforms.correlated import BandedNoise, TreeNoise
from atoll.transforms.discrete import Skellam
from atoll.transforms.integers import FixedPoint, SecureSum
from atoll.transforms.local import LocalGaussian
from atoll.transforms.noise import GaussianNoise, LaplaceNoise
from atoll.transforms.weak import WeakDp
from atoll.transforms.weights import EqualWeights
from atoll.tree import Tree

KEY = rng.key("canaries")
DELTA = 1e-3
SMALL: Tree = {"delta": {"w": torch.zeros(3, 5), "b": torch.zeros(4)}, "control": torch.zeros(6)}


def like(size: int) -> Tree:
    return {"delta": {"w": torch.zeros(size // 100, 90), "b": torch.zeros(size // 10)}}


def chain_of(*layers: Transform, spec: Spec) -> Chain:
    return Chain((EqualWeights(), *layers)).bind(spec)[0]


@dataclass
class Run:
    """Rounds without a driver: the slow reference. Clients send random updates, all through the real chain.

    Of a large cohort only the first eight clients send anything: what they send is not the point.
    """

    chain: Chain
    sampler: Sampler
    update: Tree
    canaries: Canaries
    population: int = 8
    seed: int = 0
    knows: bool = True  # does the adversary know what the clients sent?
    by_law: bool = False  # are canaries drawn by what the sampler says of itself?

    def rounds(self, first: int, last: int, state: Tree | None = None) -> Tree:
        memory = self.chain.init(self.update)[1]
        state = self.chain.init(self.update)[0] if state is None else state
        for r in range(first, last):
            state = self.round(r, state, memory, rng.key(self.seed, "round", r))
        return state

    def round(self, number: int, state: Tree, memory: Tree, key: Tensor) -> Tree:
        ids, how = self.sampler.sample(self.population, number, rng.key(self.seed, "cohort"))
        total = self.honest(ids[:8], state, memory, key)
        run_key = rng.key(self.seed, "cohort")
        often = None if self.by_law else drawn(self.sampler, self.population, len(self.canaries), number, run_key)
        more = self.canaries.contribution(number, how, self.chain, state, rng.child(key, "canaries"), often)
        after, new = self.chain.server(total if more is None else total.merge(more), state, rng.child(key, "server"))
        clear = without_noise(self.chain).server(total, state, rng.child(key, "server"))[0]
        self.canaries.observe(after, clear if self.knows else None)
        return new

    def honest(self, ids: Tensor, state: Tree, memory: Tree, key: Tensor) -> Total:
        def one(k: Tensor) -> Update:
            counter = iter(range(99))
            value = tree.map(lambda x: rng.normal(rng.fold(k, next(counter)), tuple(x.shape)), self.update)
            return self.chain.client(Update(value, torch.ones(())), state, memory, rng.fold(k, 99))[0]

        if not len(ids):
            empty = one(rng.child(key, "nobody"))
            return Total(tree.zeros_like(empty.value), torch.zeros(()), torch.zeros(()))
        sent = vmap(one)(torch.stack([rng.child(key, int(i), n) for n, i in enumerate(ids)]))
        value = tree.map(lambda x: x.sum(0), sent[0])
        return Total(value, sent[1].sum(), torch.tensor(float(len(ids))))


def audited(
    layers: tuple[Transform, ...],
    sampler: Sampler,
    rounds: int,
    count: int,
    seed: int = 0,
    size: int | None = None,
    **more: object,
) -> Canaries:
    update = like(count if size is None else size)
    fixed = {"population": 8, **more}["population"]
    separation = getattr(sampler, "separation", 1)
    cohort = getattr(sampler, "size", fixed)
    spec = Spec(rounds=rounds, size=tree.count(update), cohort=cohort, separation=separation)  # type: ignore[arg-type]
    planted = Canaries.plant(count, update, rng.key(seed, "planted"), "cpu")
    Run(chain_of(*layers, spec=spec), sampler, update, planted, seed=seed, **more).rounds(0, rounds)  # type: ignore[arg-type]
    return planted


def told_apart(canaries: Canaries) -> float:
    """The distance between the scores of those in and those out, in standard deviations of those out."""
    inside, outside = canaries.score[canaries.inside], canaries.score[~canaries.inside]
    return float((inside.mean() - outside.mean()) / outside.std())


# Honest and not


class Halved(GaussianNoise):
    """Half the noise that its event says."""

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        return GaussianNoise(self.multiplier / 2, None, self.bound).server(total, state, key)


class Loose(ClipL2):
    """Lets updates of twice its bound through."""

    def client(self, update: Update, state: Tree, memory: Tree, key: Tensor) -> tuple[Update, Tree]:
        return ClipL2(2 * self.bound).client(update, state, memory, key)


@dataclass(frozen=True)
class Twice:
    """Draws each client with twice the probability that it says."""

    probability: float

    def check(self, population: int) -> None:
        pass

    def sample(self, population: int, round: int, key: Tensor) -> tuple[Tensor, Participation]:
        ids, how = Poisson(2 * self.probability).sample(population, round, key)
        return ids, replace(how, probability=self.probability)


CLAIM = gaussian_epsilon(2.0 / 4**0.5, DELTA)  # multiplier 2, four rounds, everyone: 3.14


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


@pytest.mark.parametrize("seed", range(2))
def test_noise_silently_halved_is_caught(seed: int) -> None:
    layer = Halved(2.0)
    assert layer.event() == Gaussian(2.0)
    found = audited((ClipL2(0.5), layer), Everyone(), 4, 8000, seed)
    assert found.verdict(DELTA)["epsilon_lower"] > CLAIM + 0.5


def test_clipping_silently_off_is_caught() -> None:
    found = audited((Loose(0.5), GaussianNoise(2.0)), Everyone(), 4, 6000, size=6000)
    assert found.verdict(DELTA)["epsilon_lower"] > CLAIM + 0.3


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
    # Four rounds at multiplier 2: one deviation apart. Eight honest clients add a little spread of their own.
    assert told_apart(found) == pytest.approx(1.0, abs=5 * 2 / 8000**0.5)
    assert abs(float(found.score[~found.inside].mean())) < 5 * 2.0 / 4000**0.5


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


def found_event(layer: Transform, rounds: int, separation: int) -> object:
    spec = Spec(rounds=rounds, separation=separation, equal_weights=True, l2=0.5)
    return layer.bind(spec)[0].event()


def test_tree_noise_is_read_as_a_sum_over_the_run() -> None:
    found = audited((ClipL2(0.5), TreeNoise(8.0)), Everyone(), 8, 8000)
    assert told_apart(found) == pytest.approx(8 / 8.0, abs=5 * 2 / 8000**0.5)  # eight rounds, one node's noise


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
    found = audited((AdaptiveClip(start=1.0, rate=0.0), GaussianNoise(2.0)), Everyone(), 4, 8000)
    assert told_apart(found) == pytest.approx((1 - 0.01) ** 0.5, abs=5 * 2 / 8000**0.5)


def test_local_noise_is_everywhere_and_is_made_for_real() -> None:
    found = audited((ClipL2(0.5), LocalGaussian(8.0, 1e-3)), Everyone(), 1, 300, size=300)
    assert found.score[~found.inside].std() > 1.0  # a hundred and fifty canaries' noise on every number


# Passing through the chain

PASSED: dict[str, Transform] = {
    "equal_weights": EqualWeights(),
    "clip_l2": ClipL2(0.3),
    "clip_l1": ClipL1(0.3),
    "clip_per_layer": ClipPerLayer(0.3),
    "clip_layers": ClipLayers({"w": 0.1, "rest": 0.4}),
    "adaptive_clip": AdaptiveClip(start=0.7),
    "fixed_point": Chain((ClipL2(0.25), FixedPoint(2.0**-6))),
    "secure_sum": Chain((ClipL2(0.25), FixedPoint(2.0**-6), SecureSum(20))),
    "top_k": TopK(0.1),
    "weak_dp": WeakDp(0.3),
}


def test_every_layer_that_is_taken_on_trust_is_tested() -> None:
    assert set(PASSED) == KEEPS_ZEROS


@pytest.mark.parametrize("name", sorted(PASSED))
def test_one_number_for_each_tensor_is_exactly_the_whole_update(name: str) -> None:
    inner = PASSED[name]
    layers = inner.layers if isinstance(inner, Chain) else (inner,)
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
    torch.testing.assert_close(planted.places.read(total.value), 0.5 * often.double() * planted.inside)
    assert sum(float(x.abs().sum()) for x in tree.leaves(total.value)) == pytest.approx(
        0.5 * float((often * planted.inside).sum())
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
        turns.by_law(Participation("available", 5), 5, 0, KEY, KEY)


# Taking part

SAMPLERS = [Everyone(), Fixed(3), Fraction(0.3), Poisson(0.3), Poisson(size=4), FixedWithReplacement(6), Cyclic(2, 3)]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: type(s).__name__)
def test_canaries_come_as_often_as_clients(sampler: Sampler) -> None:
    population, count, rounds = 10, 300, 60
    clients, by_sampler, by_law = torch.zeros(population), torch.zeros(count), torch.zeros(count)
    squares = [0.0, 0.0, 0.0]
    for r in range(rounds):
        ids, how = sampler.sample(population, r, KEY)
        drawn_now = drawn(sampler, population, count, r, KEY)
        law_now = turns.by_law(how, count, r, KEY, rng.child(KEY, r))
        for i, (total, now) in enumerate(
            [(clients, torch.bincount(ids, minlength=population)), (by_sampler, drawn_now), (by_law, law_now)]
        ):
            total += now
            squares[i] += float((now**2).double().mean())
    rate = float(clients.mean()) / rounds
    spread = (
        5 * (rate * (1 + rate) / (count * rounds)) ** 0.5
        + 5 * float(isinstance(sampler, Poisson)) * (rate / (population * rounds)) ** 0.5
    )
    for total, square in ((by_sampler, squares[1]), (by_law, squares[2])):
        assert float(total.mean()) / rounds == pytest.approx(rate, abs=spread + 1e-9)
        assert square / rounds == pytest.approx(squares[0] / rounds, rel=0.15)


def test_a_canary_keeps_to_its_group() -> None:
    how = Participation("cyclic", 9, size=2, separation=3)
    came = torch.stack([turns.by_law(how, 50, r, KEY, rng.child(KEY, r)) for r in range(30)])
    for phase in range(3):
        came_then = came[phase::3].sum(0) > 0
        assert not bool((came_then & (came.sum(0) > came[phase::3].sum(0))).any())


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
    spec = Spec(rounds=10, size=tree.count(update), separation=getattr(sampler, "separation", 1), cohort=2)
    chain = chain_of(*layers, spec=spec)
    whole = Canaries.plant(200, update, KEY, "cpu")
    Run(chain, sampler, update, whole).rounds(0, 10)
    first, second = Canaries.plant(200, update, KEY, "cpu"), Canaries.plant(200, update, KEY, "cpu")
    state = Run(chain, sampler, update, first).rounds(0, 5)
    second.load(first.state())
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
    chain = chain_of(AdaptiveClip(start=0.5), GaussianNoise(1.0), spec=Spec(rounds=1))
    state, _ = chain.init(SMALL)
    quiet = Chain((*chain.layers[:2], GaussianNoise(0.0, None, 1.0)))
    total = Total({**tree.map(torch.ones_like, SMALL), "within": torch.ones(())}, torch.tensor(4.0), torch.tensor(4.0))
    a, b = (c.server(total, state, KEY)[0] for c in (without_noise(chain), quiet))
    for x, y in zip(tree.leaves(a.value), tree.leaves(b.value), strict=True):
        assert torch.equal(x, y)
    assert math.isclose(float(tree.leaves(a.value)[0].flatten()[0]), 0.5)
