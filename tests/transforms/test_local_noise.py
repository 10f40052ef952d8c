"""Local mechanisms: unbiased, as noisy as they say, and as private.

Keys are fixed; bounds are five standard errors, a false alarm in about a million keys.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.func import vmap

from atoll import rng, tree
from atoll.core import Chain, Spec, Total, Transform, Update
from atoll.privacy.analytic import gaussian_delta
from atoll.transforms.clip import ClipL1, ClipL2
from atoll.transforms.local_noise import ApproximateLocal, LocalGaussian, LocalLaplace, Privunit
from atoll.transforms.privunit import cap
from atoll.transforms.weights import EqualWeights
from atoll.tree import Tree

KEY = rng.key("local")
SIZE = 40


def bound(clip: Transform, transform: Transform) -> Transform:
    return Chain((EqualWeights(), clip, transform)).bind(Spec(size=SIZE))[0].transforms[-1]


def one() -> Tree:
    """An update of length 0.8, in two tensors."""
    x = rng.normal(rng.key("update"), (SIZE,))
    x = 0.8 * x / x.norm()
    return {"a": x[:10].reshape(2, 5), "b": {"c": x[10:]}}


def draws_of(transform: Transform, value: Tree, n: int) -> np.ndarray:
    keys = vmap(lambda i: rng.fold(KEY, i))(torch.arange(n))

    def client(k: Tensor) -> Tree:
        return transform.client(Update(value, torch.ones(())), {}, {}, k)[0].value

    found = vmap(client)(keys)
    return torch.cat([x.reshape(n, -1) for x in tree.leaves(found)], 1).double().numpy()


def flat(value: Tree) -> np.ndarray:
    return torch.cat([x.flatten() for x in tree.leaves(value)]).double().numpy()


def test_local_gaussian_noise_is_for_any_two_updates() -> None:
    transform = bound(ClipL2(0.8), LocalGaussian(1.5, 1e-5))
    assert isinstance(transform, LocalGaussian)
    assert gaussian_delta(transform.std / 1.6, 1.5) == pytest.approx(1e-5, rel=1e-6)
    x = (draws_of(transform, one(), 2_000) - flat(one())).flatten()
    assert stats.kstest(x / transform.std, stats.norm.cdf).pvalue > 1e-6


def test_local_laplace_noise_is_for_any_two_updates() -> None:
    transform = bound(ClipL1(6.0), LocalLaplace(1.5))
    x = (draws_of(transform, one(), 2_000) - flat(one())).flatten()
    assert stats.kstest(x * 1.5 / 12.0, stats.laplace.cdf).pvalue > 1e-6


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 16.0, 100.0])
def test_the_cap_has_its_epsilon_and_no_better_one_is_near(epsilon: float) -> None:
    best = cap(epsilon)
    # densities relative to the normal law: lean / above over the cut, (1 - lean) / (1 - above) below it
    inside, outside = math.log(best.lean / best.above), math.log((1 - best.lean) / (1 - best.above))
    assert inside - outside == pytest.approx(epsilon, rel=1e-9)
    x = np.linspace(-3, epsilon + 3, 2_001)  # of log(q / (1 - q)), by a plain formula
    over, p = 1 / (1 + np.exp(x)), 1 / (1 + np.exp(x - epsilon))
    means = stats.norm.pdf(stats.norm.isf(over)) * (p / over - (1 - p) / (1 - over))
    assert best.mean >= means.max() * (1 - 1e-9)


@pytest.mark.parametrize("length", [0.8, 0.3, 0.0])
def test_privunit_is_unbiased_and_its_error_is_the_one_it_says(length: float) -> None:
    transform, value = bound(ClipL2(0.8), Privunit(3.0)), tree.scale(one(), length / 0.8)
    n = 20_000
    x = draws_of(transform, value, n)
    errors = x - flat(value)
    assert np.abs(errors.mean(0) / (x.std(0) / n**0.5)).max() < 6.0  # 40 numbers
    best = cap(3.0)
    wanted = 0.8**2 * SIZE * best.squares(SIZE) / best.mean**2 - length**2
    squares = (errors**2).sum(1)
    assert squares.mean() == pytest.approx(wanted, abs=5 * squares.std() / n**0.5)


def test_privunit_draws_from_the_law_that_its_epsilon_is_of() -> None:
    """Along the update: above the cut with probability `lean`, and normal on either side of it; across it: normal."""
    transform, best, n = bound(ClipL2(0.8), Privunit(2.0)), cap(2.0), 20_000
    unit = flat(one()) / 0.8
    x = draws_of(transform, one(), n) * best.mean / 0.8
    along = x @ unit
    cut = -stats.norm.ppf(best.above)
    above = along > cut
    assert abs(above.mean() - best.lean) < 5 * (best.lean * (1 - best.lean) / n) ** 0.5
    tail = stats.norm.sf(along[above]) / best.above
    body = stats.norm.cdf(along[~above]) / (1 - best.above)
    assert stats.kstest(tail, "uniform").pvalue > 1e-6
    assert stats.kstest(body, "uniform").pvalue > 1e-6
    across = x - along[:, None] * unit
    assert stats.kstest((across**2).sum(1), stats.chi2(SIZE - 1).cdf).pvalue > 1e-6


@pytest.mark.parametrize(("name", "local"), [
    ("gaussian", LocalGaussian(2.0, 1e-6)), ("laplace", LocalLaplace(2.0)), ("privunit", Privunit(2.0)),
])  # fmt: skip
def test_the_approximation_has_the_squared_error_of_the_mechanism(name: str, local: Transform) -> None:
    clip = ClipL1(6.0) if name == "laplace" else ClipL2(0.8)
    n = 4_000
    local_squares = ((draws_of(bound(clip, local), tree.zeros_like(one()), n)) ** 2).sum(1)
    approximate = bound(clip, ApproximateLocal(2.0, name))  # type: ignore[arg-type]
    total = Total({"x": torch.zeros(200_000)}, torch.tensor(9.0), torch.tensor(9.0))
    noise = approximate.server(total, {}, KEY)[0].value["x"].double().numpy()
    assert stats.kstest(noise / noise.std(), stats.norm.cdf).pvalue > 1e-6
    per_client = noise.var() / 9.0 * SIZE
    spread = 5 * local_squares.std() / n**0.5 + 5 * per_client * (2 / 200_000) ** 0.5
    assert per_client == pytest.approx(local_squares.mean(), abs=spread)


@pytest.mark.parametrize("length", [0.0, 0.5, 0.8])
def test_the_approximation_of_privunit_has_at_most_its_error(length: float) -> None:
    """Few numbers and a large epsilon: there it is nearly all of the error at the bound."""
    clip, n, size = ClipL2(0.8), 20_000, 7
    value = {"x": torch.full((size,), length / size**0.5)}
    local, approximate = (
        Chain((EqualWeights(), clip, x)).bind(Spec(size=size))[0].transforms[-1]
        for x in (Privunit(20.0), ApproximateLocal(20.0))
    )
    assert isinstance(approximate, ApproximateLocal)
    squares = ((draws_of(local, value, n) - flat(value)) ** 2).sum(1)
    at_most = size * approximate.std**2
    assert squares.mean() == pytest.approx(at_most - length**2, abs=5 * squares.std() / n**0.5)


def test_an_epsilon_beyond_what_floats_hold_is_no_worse_than_asked_for() -> None:
    assert cap(5_000.0) == cap(500.0)


def test_a_huge_epsilon_sends_the_update_itself() -> None:
    x = draws_of(bound(ClipL1(6.0), LocalLaplace(1e9)), one(), 2)
    assert np.abs(x - flat(one())).max() < 1e-5
    x = draws_of(bound(ClipL2(0.8), LocalGaussian(1e6, 1e-5)), one(), 2)
    assert np.abs(x - flat(one())).max() < 1e-2
