"""Keyed randomness: known answers, laws, and the fast host-side twins in `atoll.rng.host`.

Every test of a law has fixed keys, so it passes or fails for good; its bound is set so that a correct generator would
fail it for one key in a million (p < 1e-6, or five standard errors).
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from atoll import rng
from atoll.rng import draws, host
from tests.support.marks import slow

FALSE_ALARM = 1e-6
ONES = 0xFFFFFFFF

# Random123's kat_vectors for threefry2x32 with 20 rounds: counter, key, answer
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((ONES, ONES), (ONES, ONES), (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_threefry_gives_the_published_answers_on_ints_arrays_and_tensors(counter, key, answer):
    assert rng.threefry(*key, *counter) == answer
    as_arrays = rng.threefry(*key, *(np.array([c], np.int64) for c in counter))
    as_tensors = rng.threefry(*torch.tensor(key), *torch.tensor(counter)[:, None])
    assert tuple(int(x[0]) for x in as_arrays) == answer
    assert tuple(int(x[0]) for x in as_tensors) == answer


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_the_words_of_the_host_are_the_published_ones(counter, key, answer):
    x0, x1 = (np.array([c], np.uint32) for c in counter)
    word = int(host.bits_at(torch.tensor([key, (1, 2)]), x0, x1)[0, 0])
    assert (word >> 32, word & ONES) == answer


@pytest.mark.parametrize(
    "draw",
    [
        lambda k: rng.fold(k, 7),
        lambda k: rng.bits(k, (5,)),
        lambda k: rng.uniform(k, (5,)),
        lambda k: rng.normal(k, (2, 3)),
        lambda k: rng.permutation(k, 6),
        lambda k: rng.log_gamma(k, torch.tensor([0.1, 1.0, 9.0])),
        lambda k: rng.dirichlet(k, torch.full((4,), 0.5)),
    ],
)
def test_a_draw_under_vmap_is_the_draw_of_a_loop(draw):
    keys = torch.stack([rng.key(0, i) for i in range(3)])
    assert torch.equal(torch.vmap(draw)(keys), torch.stack([draw(k) for k in keys]))


@pytest.mark.parametrize("word", [0, ONES])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_uniform_number_is_strictly_inside_even_for_extreme_words(monkeypatch, word, dtype):
    monkeypatch.setattr(draws, "bits", lambda k, shape: torch.full(shape, word))
    u = rng.uniform(rng.key(0), (3,), dtype)
    assert u.dtype == dtype
    assert ((u > 0) & (u < 1)).all()
    assert torch.isfinite(rng.normal(rng.key(0), (3,), dtype)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uniform_and_normal_numbers_follow_their_laws(dtype):
    u = rng.uniform(rng.key(1, "u"), (50_000,), dtype).double().numpy()
    z = rng.normal(rng.key(1, "z"), (50_000,), dtype).double().numpy()
    assert stats.kstest(u, "uniform").pvalue > FALSE_ALARM
    assert stats.kstest(z, "norm").pvalue > FALSE_ALARM
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 5 / np.sqrt(len(z))


@pytest.mark.parametrize("alpha", [0.05, 0.5, 1.0, 3.7, 50.0])
def test_gamma_numbers_follow_their_law(alpha):
    n = 4_000
    x = rng.log_gamma(rng.key(2, "gamma"), torch.full((n,), alpha)).exp().numpy()
    assert stats.kstest(x, stats.gamma(alpha).cdf).pvalue > FALSE_ALARM
    assert abs(x.mean() - alpha) < 5 * np.sqrt(alpha / n)


def test_dirichlet_shares_follow_their_law():
    alpha = torch.tensor([0.3, 1.0, 4.0])
    x = rng.dirichlet(rng.key(3), alpha.expand(4_000, 3)).numpy()
    total = float(alpha.sum())
    assert np.allclose(x.sum(1), 1)
    for share, a in zip(x.T, alpha.tolist(), strict=True):
        assert stats.kstest(share, stats.beta(a, total - a).cdf).pvalue > FALSE_ALARM


def test_a_tiny_alpha_still_gives_shares():
    x = rng.dirichlet(rng.key(4), torch.full((500, 10), 1e-3))
    assert torch.isfinite(x).all()
    assert torch.allclose(x.sum(1), torch.ones(500, dtype=torch.float64))
    assert (x.max(1).values > 0.99).double().mean() > 0.9  # nearly everything goes to one


def test_a_coin_falls_with_its_probability():
    heads = rng.bernoulli(rng.key(5), 0.3, (100_000,)).double().mean()
    assert abs(float(heads) - 0.3) < 5 * np.sqrt(0.3 * 0.7 / 100_000)


@given(n=st.integers(0, 60), seed=st.integers(0, 2**40))
def test_a_permutation_is_a_permutation(n, seed):
    assert sorted(rng.permutation(rng.key(seed), n).tolist()) == list(range(n))


def test_all_permutations_come_equally_often():
    keys = torch.stack([rng.key(6, i) for i in range(6_000)])
    orders = torch.vmap(lambda k: rng.permutation(k, 3))(keys)
    seen = [int((orders == torch.tensor(p)).all(1).sum()) for p in itertools.permutations(range(3))]
    assert stats.chisquare(seen).pvalue > FALSE_ALARM


@given(n=st.integers(1, 400), data=st.data())
def test_choice_and_distinct_never_repeat(n, data):
    size = data.draw(st.integers(0, n))
    for draw in (rng.choice, rng.distinct):
        chosen = draw(rng.key(7, n, size), n, size).tolist()
        assert len(chosen) == size == len(set(chosen))
        assert all(0 <= c < n for c in chosen)


def test_choosing_more_than_there_is_is_refused():
    with pytest.raises(ValueError, match="cannot choose 4 different numbers out of 3"):
        rng.choice(rng.key(0), 3, 4)


@pytest.mark.parametrize("draw", [rng.choice, slow(rng.distinct)])
def test_choice_and_distinct_have_one_law(draw):
    # 2 of 9 in order: 72 pairs, each as likely; 9 is large enough for distinct to take its own way (2 * 4 <= 9)
    pairs = [tuple(draw(rng.key(8, i), 9, 2).tolist()) for i in range(2_000)]
    seen = [pairs.count(p) for p in itertools.permutations(range(9), 2)]
    assert sum(seen) == 2_000
    assert stats.chisquare(seen).pvalue > FALSE_ALARM


def test_distinct_draws_on_when_its_first_draws_repeat_too_often(monkeypatch):
    words = rng.bits
    monkeypatch.setattr(draws, "bits", lambda k, s: words(k, s) if s[0] > 200 else torch.zeros(s).long())
    assert len(set(rng.distinct(rng.key(0), 10**6, 100).tolist())) == 100


def test_distinct_of_the_host_draws_on_as_well(monkeypatch):
    words = host.stream
    monkeypatch.setattr(host, "stream", lambda k, at: words(k, at) if len(at) > 200 else np.zeros(len(at), np.uint64))
    assert len(set(host.distinct(rng.key(0), 10**6, 100).tolist())) == 100


def test_different_paths_give_different_keys():
    paths = [
        (0,),
        ("0",),
        (0, 1),
        (1, 0),
        (0, "round", 1),
        (0, "round", 11),
        (0, "round1"),
        (-1,),
        (2**40,),
        ("a", "b"),
    ]
    assert len({tuple(rng.key(*p).tolist()) for p in paths}) == len(paths)


def test_folding_takes_numbers_of_64_bits():
    k = rng.key(0)
    numbers = [0, 1, 2**31, 2**32, 2**32 + 1, 2**40, 2**63 - 1, -1, -(2**63)]
    folded = [tuple(rng.fold(k, n).tolist()) for n in numbers]
    assert len(set(folded)) == len(numbers)
    assert [tuple(host.fold(k, n).tolist()) for n in numbers] == folded
    assert torch.equal(rng.fold(k, torch.tensor(2**40)), rng.fold(k, 2**40))


@given(n=st.integers(0, 200), seed=st.integers(0, 2**30))
def test_the_draws_of_the_host_are_the_draws_of_rng(n, seed):
    k = rng.key(seed)
    assert host.permutation(k, n).tolist() == rng.permutation(k, n).tolist()
    assert host.distinct(k, n + 1, n // 5).tolist() == rng.distinct(k, n + 1, n // 5).tolist()
    assert host.uniform(k, np.arange(n)).tolist() == rng.uniform(k, (n,), torch.float64).tolist()
    assert np.allclose(host.normal(k, n), rng.normal(k, (n,), torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("alpha", [0.01, 0.5, 1.0, 20.0])
def test_the_gammas_of_the_host_are_the_gammas_of_rng(alpha):
    alphas = torch.full((500,), alpha, dtype=torch.float64)
    ours, theirs = host.log_gamma(rng.key(9), alpha, 500), rng.log_gamma(rng.key(9), alphas)
    assert np.allclose(ours, theirs, rtol=1e-9, atol=1e-9)
    shares = rng.dirichlet(rng.key(9), alphas.reshape(5, 100))
    assert np.allclose(host.dirichlet(rng.key(9), alpha, (5, 100)), shares, rtol=1e-7, atol=1e-12)


def test_more_words_than_a_block_are_the_words_of_rng():
    n = host._BLOCK + 3
    words = host.stream(rng.key(10), np.arange(n))
    assert torch.equal(torch.from_numpy((words >> np.uint64(32)).astype(np.int64)), rng.bits(rng.key(10), (n, 2))[:, 0])


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12), seed=st.integers(0, 1000))
def test_a_group_is_put_in_the_same_order_whatever_stands_beside_it(sizes, seed):
    keys = torch.stack([rng.key(seed, e) for e in range(2)])
    ids, n = np.arange(len(sizes)) * 7, np.array(sizes)
    together = np.split(host.order(keys, ids, n), np.cumsum(n)[:-1], axis=1)
    for i, ordered in enumerate(together):
        assert np.array_equal(ordered, host.order(keys, ids[i : i + 1], n[i : i + 1]))
        assert np.array_equal(np.sort(ordered, axis=1), np.tile(np.arange(n[i]), (2, 1)))


@given(st.integers(0, 2**40), st.integers(0, 2**63 - 1))
def test_a_key_folded_on_the_host_is_the_same_key(seed: int, data: int) -> None:
    k = rng.key(seed)
    assert torch.equal(rng.fold_host(k, data), rng.fold(k, data))


def test_keys_of_many_ids_at_once_are_those_of_each() -> None:
    key, ids = rng.key(3, "nodes"), torch.tensor([0, 7, 41, 1 << 40])
    assert torch.equal(rng.fold_each(key, ids), torch.stack([rng.fold_host(key, int(i)) for i in ids]))
    named = torch.stack([rng.fold_name(key, "apply", int(i)) for i in ids])
    assert torch.equal(rng.fold_name_each(key, "apply", ids), named)
