"""Correlated noise: against matrices written out, and trees drawn node by node."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from atoll import rng, tree
from atoll.core import Chain, Spec, Total
from atoll.privacy.factorisation import banded, error
from atoll.privacy.tree_sensitivity import nodes_square
from atoll.rng import dp
from atoll.transforms.clip import ClipL2
from atoll.transforms.correlated import BandedNoise, TreeNoise
from atoll.transforms.noise import GaussianNoise
from atoll.transforms.weights import EqualWeights

ROUNDS, BOUND = 13, 0.5
Noise = BandedNoise | TreeNoise


def bound(noise: Noise, rounds: int = ROUNDS, min_separation: int = 5) -> Noise:
    made, _ = Chain((EqualWeights(), ClipL2(BOUND), noise)).bind(Spec(rounds=rounds, min_separation=min_separation))
    return made.transforms[-1]  # type: ignore[return-value]


def run(
    noise: Noise, rounds: int, state: tree.Tree | None = None, first: int = 0, n: int = 6
) -> tuple[np.ndarray, tree.Tree]:
    """(rounds, n) noise as the server adds it, and the state after it."""
    total = Total({"a": torch.zeros(n - 2), "b": {"c": torch.zeros(1, 2)}}, torch.tensor(4.0), torch.tensor(4.0))
    state = noise.init(total.value)[0] if state is None else state
    rows = []
    for t in range(first, rounds):
        out, state = noise.server(total, state, rng.key("round", t))
        rows.append(torch.cat([x.flatten() for x in tree.leaves(out.value)]).double().numpy())
    return np.array(rows), state


def fresh(rounds: int, n: int = 6) -> np.ndarray:
    """The independent draws of each round, z_t."""
    like = {"a": torch.zeros(n - 2), "b": {"c": torch.zeros(1, 2)}}
    rows = [dp.noise_like(like, rng.key("round", t), dp.normal) for t in range(rounds)]
    return np.array([torch.cat([x.flatten() for x in tree.leaves(r)]).double().numpy() for r in rows])


@pytest.mark.parametrize("bands", [1, 2, 5])
def test_banded_noise_is_the_inverse_of_the_matrix_times_fresh_noise(bands: int) -> None:
    c = banded(ROUNDS, bands)
    assert len(c) == bands
    matrix = np.zeros((ROUNDS, ROUNDS))
    for k, x in enumerate(c):
        matrix += np.diag(np.full(ROUNDS - k, x), -k)
    wanted = 2.0 * BOUND * np.linalg.inv(matrix) @ fresh(ROUNDS)
    found, _ = run(bound(BandedNoise(2.0, bands)), ROUNDS)
    assert np.allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert np.linalg.norm(matrix, axis=0).max() <= 1 + 1e-12  # one client, one turn: no more than its bound


def test_a_run_of_fewer_rounds_than_bands_has_a_band_for_every_round() -> None:
    found, _ = run(bound(BandedNoise(2.0, 8), rounds=4, min_separation=8), 4)
    assert np.allclose(found, run(bound(BandedNoise(2.0, 4), rounds=4), 4)[0])


def test_one_band_is_independent_gaussian_noise() -> None:
    total = Total({"a": torch.zeros(50)}, torch.tensor(4.0), torch.tensor(4.0))
    plain = GaussianNoise(2.0, sensitivity=BOUND)
    noise = bound(BandedNoise(2.0, 1))
    state, _ = noise.init(total.value)
    for t in range(3):
        out, state = noise.server(total, state, rng.key(t))
        assert torch.allclose(out.value["a"], plain.server(total, {}, rng.key(t))[0].value["a"])


def test_added_up_over_rounds_banded_noise_is_as_small_as_the_factorisation_says() -> None:
    """The mean square of prefix sums over 20,000 numbers: within 3 %, five standard errors."""
    found, _ = run(bound(BandedNoise(1.0, 5)), ROUNDS, n=20_000)
    sums = np.cumsum(found, axis=0) / BOUND
    assert (sums**2).mean() == pytest.approx(error(banded(ROUNDS, 5), ROUNDS), rel=0.03)
    plain, _ = run(bound(BandedNoise(1.0, 1)), ROUNDS, n=20_000)
    assert (sums**2).mean() < 0.8 * ((np.cumsum(plain, axis=0) / BOUND) ** 2).mean()


def slow_tree(rounds: int, restart: int | None) -> tuple[np.ndarray, dict[tuple[int, int, int], int]]:
    """Noise of every prefix sum from a tree written out: node (tree, level, index) -> the round that drew it."""
    length, z, node = restart or rounds, fresh(rounds), {}
    prefix = np.zeros((rounds + 1, z.shape[1]))
    for t in range(rounds):
        which, at = divmod(t, length)
        level = 0
        while (at + 1) % 2 ** (level + 1) == 0:
            level += 1
        node[which, level, (at + 1) // 2**level - 1] = t
        base, here = prefix[which * length], np.zeros(z.shape[1])
        first, left = 0, at + 1
        while left:  # the largest nodes that fit, from the left
            level = left.bit_length() - 1
            here = here + z[node[which, level, first // 2**level]]
            first, left = first + 2**level, left - 2**level
        prefix[t + 1] = base + here
    return np.diff(prefix, axis=0), node


@pytest.mark.parametrize("restart", [None, 4, 5, 8])
def test_tree_noise_is_that_of_a_tree_written_out(restart: int | None) -> None:
    found, _ = run(bound(TreeNoise(2.0, restart)), ROUNDS)
    wanted, _ = slow_tree(ROUNDS, restart)
    assert np.allclose(found, 2.0 * BOUND * wanted, rtol=1e-4, atol=1e-5)


def test_a_client_is_in_no_more_nodes_than_the_event_counts() -> None:
    """Every node that was drawn holds the client's rounds at most as often as the accountant's tree does."""
    _, node = slow_tree(ROUNDS, None)
    for turns in ([0], [3], [0, 5, 10], [2, 7, 12], list(range(ROUNDS))):
        square = 0
        for _, level, index in node:
            inside = [t for t in turns if index * 2**level <= t < (index + 1) * 2**level]
            square += len(inside) ** 2
        assert square <= nodes_square(turns, ROUNDS)


@pytest.mark.parametrize("noise", [BandedNoise(2.0, 4), TreeNoise(2.0), TreeNoise(2.0, restart=5)], ids=repr)
def test_a_resumed_run_goes_on_with_the_noise_of_the_past(noise: Noise) -> None:
    whole, _ = run(bound(noise), ROUNDS)
    for cut in (1, 6, 11):
        begun, state = run(bound(noise), cut)
        rest, _ = run(bound(noise), ROUNDS, state, cut)
        assert np.array_equal(np.concatenate([begun, rest]), whole)


def test_a_longer_run_that_is_resumed_keeps_its_factorisation() -> None:
    _, state = run(bound(BandedNoise(2.0, 4)), 6)
    longer = bound(BandedNoise(2.0, 4), rounds=20)
    rest, _ = run(longer, ROUNDS, state, 6)
    assert np.array_equal(rest, run(bound(BandedNoise(2.0, 4)), ROUNDS)[0][6:])


@pytest.mark.parametrize("noise", [BandedNoise(0.0, 4), TreeNoise(0.0)], ids=repr)
def test_no_multiplier_is_no_noise(noise: Noise) -> None:
    assert not run(bound(noise), 5)[0].any()


@pytest.mark.parametrize("noise", [BandedNoise(2.0, 4), TreeNoise(2.0)], ids=repr)
def test_a_noise_cohort_scales_the_noise(noise: Noise) -> None:
    plain, _ = run(bound(noise), 8)
    scaled, _ = run(bound(replace(noise, noise_cohort=80)), 8, None)
    assert np.allclose(scaled, plain * 4.0 / 80, rtol=1e-5)
