"""Noise on the sum: its law, its size, its key, and what happens with the knob at zero.

Keys are fixed. Bounds on means and deviations are five standard errors, laws are tested at p > 1e-6: false alarms in
about a million keys each.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.func import vmap

from atoll import rng, tree
from atoll.core import Chain, Spec, Total, Transform, Update
from atoll.privacy import Approximate
from atoll.rng import dp
from atoll.transforms.clip import ClipL1, ClipL2
from atoll.transforms.noise import GaussianNoise, LaplaceNoise
from atoll.transforms.published_noise import Nbafl, WeakDp
from atoll.transforms.weights import EqualWeights

KEY = rng.key("noise")
N = 100_000
SPEC = Spec(rounds=10)


def bound(*layers: Transform) -> Transform:
    return Chain((EqualWeights(), *layers)).bind(SPEC)[0].transforms[-1]


def zeros(n: int = N, clients: float = 4.0) -> Total:
    return Total({"a": torch.zeros(n), "b": torch.zeros(n)}, torch.tensor(clients), torch.tensor(clients))


def noise_of(transform: Transform, clients: float = 4.0) -> np.ndarray:
    out, _ = transform.server(zeros(clients=clients), transform.init({"a": torch.zeros(1)})[0], KEY)
    a, b = (out.value[k].double().numpy() for k in "ab")
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / N**0.5
    return np.concatenate([a, b])


def has_law(x: np.ndarray, law: object, std: float) -> None:
    assert abs(x.mean()) < 5 * std / len(x) ** 0.5
    kurtosis = float(law.stats(moments="k"))  # type: ignore[attr-defined]
    assert x.std() == pytest.approx(std, rel=5 * ((kurtosis + 2) / (4 * len(x))) ** 0.5)
    assert stats.kstest(x, law.cdf).pvalue > 1e-6  # type: ignore[attr-defined]


def test_gaussian_noise_has_its_law_and_its_size() -> None:
    has_law(noise_of(bound(ClipL2(0.5), GaussianNoise(3.0))), stats.norm(0, 1.5), 1.5)


def test_the_deviation_that_a_chain_tells_is_that_of_its_noise() -> None:
    """The signal-to-noise ratio of a round is measured by it."""
    for layers in ((ClipL2(0.5), GaussianNoise(3.0)), (ClipL1(0.5), LaplaceNoise(3.0))):
        told = Chain((EqualWeights(), *layers)).bind(SPEC)[1].noise
        assert told == pytest.approx(noise_of(bound(*layers)).std(), rel=0.02)  # ten standard errors


def test_laplace_noise_has_its_law_and_its_size() -> None:
    has_law(noise_of(bound(ClipL1(0.5), LaplaceNoise(3.0))), stats.laplace(0, 1.5), 2**0.5 * 1.5)


def test_weak_noise_is_on_the_mean() -> None:
    has_law(noise_of(bound(WeakDp(1.0, std=0.1))) / 4.0, stats.norm(0, 0.1), 0.1)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_a_noise_cohort_scales_the_noise_by_the_clients_there_are(kind: str) -> None:
    plain, clip = (GaussianNoise(2.0), ClipL2(1.0)) if kind == "gaussian" else (LaplaceNoise(2.0), ClipL1(1.0))
    scaled = bound(clip, replace(plain, noise_cohort=100))
    assert np.allclose(noise_of(scaled, clients=5.0), 0.05 * noise_of(bound(clip, plain)), rtol=1e-5)


@pytest.mark.parametrize(
    "transform",
    [bound(ClipL2(1.0), GaussianNoise(0.0)), bound(ClipL1(1.0), LaplaceNoise(0.0)), bound(WeakDp(1.0, std=0.0))],
    ids=["gaussian", "laplace", "weak"],
)
def test_no_noise_is_the_identity(transform: Transform) -> None:
    total = replace(zeros(3), value={"a": torch.tensor([1.0, -2.0, 1e-8])})
    out, _ = transform.server(total, {}, KEY)
    assert torch.equal(out.value["a"], total.value["a"])


@given(st.integers(0, 2**40), st.integers(0, 70_000))
def test_the_words_of_the_host_are_those_of_every_device(seed: int, n: int) -> None:
    k = rng.key(seed)
    assert torch.equal(dp.fast_bits(k, (n,)), rng.bits(k, (n,)))


def test_normal_draws_have_deep_tails() -> None:
    """Of a million draws, 63 lie beyond 4 deviations; 23 random bits would end at 5.8, and 52 end at 8.5."""
    x = dp.normal(KEY, (1_000_000,))
    beyond = int((x.abs() > 4.0).sum())
    assert stats.poisson(63.3).sf(beyond - 1) > 1e-6
    assert stats.poisson(63.3).cdf(beyond) > 1e-6
    assert float(dp.normal(KEY, (2,), lambda k, shape: torch.zeros(shape, dtype=torch.int64))[0]) > 8.5
    ones = torch.tensor([0, 0xFFFFFFFF, 0])[:, None]  # the second word has the lower digits of the radius
    deepest = dp.normal(KEY, (2,), lambda k, shape: ones.expand(shape))
    assert float(deepest[0]) == pytest.approx((2 * 32 * np.log(2)) ** 0.5, rel=1e-5)


def test_pairs_of_normal_draws_are_independent() -> None:
    x = dp.normal(KEY, (200_001,)).double().numpy()
    assert len(x) == 200_001
    first, second = x[:100_000], x[100_001:]
    for f in (lambda v: v, np.abs, np.square):
        assert abs(np.corrcoef(f(first), f(second))[0, 1]) < 5 / 100_000**0.5


@pytest.mark.parametrize("draw", [dp.normal, dp.laplace])
def test_draws_are_the_same_alone_and_stacked(draw: dp.Draw) -> None:
    keys = torch.stack([rng.key(i) for i in range(4)])
    assert torch.equal(vmap(lambda k: draw(k, (5, 3)))(keys), torch.stack([draw(k, (5, 3)) for k in keys]))


# ----------------------------------------------------------------------------------------------------------- NbAFL


def nbafl(**changed: float) -> Nbafl:
    options = {"max_norm": 2.0, "epsilon": 20.0, "delta": 1e-2, "examples": 100, "rounds": 25, "clients": 50}
    return Nbafl(**{**options, **changed})  # type: ignore[arg-type]


def test_the_noise_of_nbafl_is_that_of_the_paper() -> None:
    """Wei et al. (2020), theorem 1: c = sqrt(2 ln(1.25/delta)), sensitivity 2C/m."""
    c = (2 * np.log(125)) ** 0.5
    assert nbafl().up() == pytest.approx(c * (2 * 2.0 / 100) / 20.0)
    assert nbafl().down() == pytest.approx(2 * c * 2.0 * (25**2 - 50) ** 0.5 / (100 * 50 * 20.0))
    assert nbafl(rounds=7).down() == 0.0  # T <= L sqrt(N)
    assert nbafl(exposures=2, rounds=14).down() == 0.0


def test_nbafl_clips_and_adds_noise_on_both_ways() -> None:
    transform = bound(nbafl(epsilon=0.01))
    up, down = nbafl(epsilon=0.01).up(), nbafl(epsilon=0.01).down()
    given = Update({"a": torch.full((N,), 5.0)}, torch.ones(()))
    sent, _ = transform.client(given, {}, {}, KEY)
    x = sent.value["a"].double().numpy() - 2.0 / N**0.5
    has_law(x, stats.norm(0, up), up)
    has_law(noise_of(transform) / 4.0, stats.norm(0, down), down)


def test_the_guarantee_of_nbafl_is_the_one_that_is_certain() -> None:
    event = bound(nbafl()).event()
    assert isinstance(event, Approximate)
    assert event.delta == 1e-2
    noise_multiplier = nbafl().up() / (2 * 2.0)
    # the exact trade-off of a Gaussian of this noise_multiplier, by Balle and Wang
    e = event.epsilon
    found = stats.norm.cdf(0.5 / noise_multiplier - e * noise_multiplier) - np.exp(
        e + stats.norm.logcdf(-0.5 / noise_multiplier - e * noise_multiplier)
    )
    assert found == pytest.approx(1e-2, rel=1e-6)
    assert e > 100 * 20.0  # the paper says 20: its sensitivity is that of one example in a mean of a hundred


def test_leaves_of_every_shape_get_noise() -> None:
    value = {"s": torch.zeros(()), "m": torch.zeros(3, 4), "e": {}, "z": torch.zeros(0)}
    out = dp.add_noise(value, KEY, dp.normal, 1.0)
    assert tree.map(lambda x: x.shape, out) == tree.map(lambda x: x.shape, value)
    assert float(out["s"]) != 0.0
