"""Who takes part in a round.

Keys are fixed; bounds on frequencies are five standard errors, a false alarm in about a million keys.
"""

import inspect

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ConfigDict, create_model
from scipy import stats

from atoll import rng
from atoll.core import Participation
from atoll.data import SAMPLERS
from atoll.data.sampling import Cyclic, CyclicPoisson, Everyone, Fixed, FixedWithReplacement, Fraction, Poisson
from atoll.errors import ConfigError
from atoll.rng import host

KEY = rng.key(0, "cohort")
available = SAMPLERS["available"]
TRACE = [[1, 0, 1], [1, 0, 0], [0, 0, 1], [1, 0, 1]]  # 4 clients, 3 rounds


def ids_of(sampler, population, round, key=KEY):
    ids, how = sampler.sample(population, round, key)
    assert ids.dtype == torch.int64
    assert how.population == population
    return ids.tolist()


ALL = [
    Everyone(),
    Fixed(5),
    FixedWithReplacement(5),
    Fraction(0.3),
    Poisson(probability=0.3),
    Poisson(size=5.0),
    Cyclic(3, 4),
    CyclicPoisson(3.0, 4),
    available([[1, 1, 0]] * 20, 4),
]


@pytest.mark.parametrize("sampler", ALL, ids=lambda s: type(s).__name__)
def test_a_cohort_follows_the_key_and_the_round(sampler):
    sampler.check(20)
    rounds = [ids_of(sampler, 20, r) for r in range(6)]
    assert rounds == [ids_of(sampler, 20, r) for r in range(6)]
    assert all(0 <= i < 20 for ids in rounds for i in ids)
    if not isinstance(sampler, Everyone):
        assert rounds != [ids_of(sampler, 20, r, rng.key(1)) for r in range(6)]
        assert rounds[0] != rounds[1]


def test_every_builder_has_a_signature_that_is_a_strict_schema():
    for name, builder in SAMPLERS.items():
        options = inspect.signature(builder, eval_str=True).parameters.values()
        fields = {o.name: (o.annotation, ... if o.default is o.empty else o.default) for o in options}
        schema = create_model(name, __config__=ConfigDict(extra="forbid", strict=True), **fields)
        assert schema.model_json_schema()["title"] == name
        assert inspect.getdoc(builder).splitlines()[0].endswith((".", ":"))


def test_participation_says_how_it_was_drawn():
    said = [s.sample(20, 0, KEY)[1] for s in ALL]
    assert said == [
        Participation("everyone", 20, size=20),
        Participation("fixed", 20, size=5),
        Participation("fixed_with_replacement", 20, size=5, replacement=True),
        Participation("fraction", 20, size=6),
        Participation("poisson", 20, probability=0.3),
        Participation("poisson", 20, probability=0.25),
        Participation("cyclic", 20, size=3, min_separation=4),
        Participation("cyclic_poisson", 20, probability=0.6, min_separation=4),
        Participation("available", 20),
    ]


def test_everyone_is_everyone():
    assert ids_of(Everyone(), 4, 7) == [0, 1, 2, 3]


@given(population=st.integers(1, 80), data=st.data(), round=st.integers(0, 2**40))
def test_a_fixed_cohort_has_its_size_and_no_repeats(population, data, round):
    size = data.draw(st.integers(1, population))
    ids = ids_of(Fixed(size), population, round)
    assert len(ids) == size == len(set(ids))
    assert all(0 <= i < population for i in ids)


def test_a_fraction_is_rounded_and_never_nobody():
    assert [len(ids_of(Fraction(s), 10, 0)) for s in (0.01, 0.26, 0.5, 1.0)] == [1, 3, 5, 10]
    assert sorted(ids_of(Fraction(1.0), 10, 0)) == list(range(10))


def test_draws_with_replacement_may_repeat():
    rounds = [ids_of(FixedWithReplacement(10), 10, r) for r in range(50)]
    assert all(len(ids) == 10 for ids in rounds)
    assert any(len(set(ids)) < 10 for ids in rounds)
    assert len(ids_of(FixedWithReplacement(50), 3, 0)) == 50  # more than there are


@pytest.mark.parametrize("sampler", [Fixed(3), FixedWithReplacement(3), Fraction(0.25), Cyclic(3, 4)], ids=repr)
def test_every_client_is_drawn_equally_often(sampler):
    seen = np.bincount([i for r in range(2_000) for i in ids_of(sampler, 12, r)], minlength=12)
    assert seen.sum() == 6_000
    assert stats.chisquare(seen).pvalue > 1e-6


@pytest.mark.parametrize("sampler", [Poisson(probability=0.15), Poisson(size=6.0)], ids=repr)
def test_a_poisson_cohort_is_independent_coins(sampler):
    rounds, N, p = 3_000, 40, 0.15
    came = np.zeros((rounds, N))
    for r in range(rounds):
        ids = ids_of(sampler, N, r)
        assert len(set(ids)) == len(ids)
        came[r, ids] = 1
    size = came.sum(1)
    assert abs(size.mean() - N * p) < 5 * (N * p * (1 - p) / rounds) ** 0.5
    assert abs(size.var() / (N * p * (1 - p)) - 1) < 5 * (2 / rounds) ** 0.5 * 1.1
    assert np.abs(came.mean(0) - p).max() < 5 * (p * (1 - p) / rounds) ** 0.5
    together = np.corrcoef(came.T)[~np.eye(N, dtype=bool)]
    assert np.abs(together).max() < 5.5 / rounds**0.5


def test_a_poisson_cohort_may_be_empty_or_everyone():
    sizes = {len(ids_of(Poisson(probability=0.05), 10, r)) for r in range(30)}
    assert 0 in sizes
    assert ids_of(Poisson(probability=1.0), 10, 0) == list(range(10))
    assert ids_of(Poisson(probability=1e-300), 10, 0) == []


def test_a_poisson_draw_goes_on_until_the_last_client(monkeypatch):
    wanted = ids_of(Poisson(probability=0.9), 5_000, 0)
    real = host.uniform

    def fewer(key, at):  # gaps of one for as long as the first guess at their number lasts
        u = real(key, at)
        return np.where(at < 4_000, 1 - 1e-12, u)

    monkeypatch.setattr(host, "uniform", fewer)
    ids = ids_of(Poisson(probability=0.3), 5_000, 0)
    assert ids[:4_000] == list(range(4_000))
    assert len(ids) > 4_100
    assert max(ids) < 5_000
    assert len(wanted) < 5_000


@pytest.mark.parametrize(("population", "size", "min_separation"), [(20, 3, 5), (23, 2, 10), (12, 12, 1), (48, 1, 48)])
def test_a_turn_in_a_cycle_comes_no_sooner_than_the_separation(population, size, min_separation):
    sampler = Cyclic(size, min_separation)
    sampler.check(population)
    last, gaps = {}, []
    for r in range(200):
        ids = ids_of(sampler, population, r)
        assert len(set(ids)) == size
        gaps += [r - last[i] for i in ids if i in last]
        last |= dict.fromkeys(ids, r)
    assert min(gaps) >= min_separation
    assert len(last) == population  # everyone has a turn


def test_only_available_clients_take_part():
    everyone = available(TRACE)
    everyone.check(4)
    assert [ids_of(everyone, 4, r) for r in range(4)] == [[0, 1, 3], [], [0, 2, 3], [0, 1, 3]]  # round 3 wraps around
    two = available(TRACE, 2)
    for r in range(30):
        ids, allowed = ids_of(two, 4, r), [c for c in range(4) if TRACE[c][r % 3]]
        assert set(ids) <= set(allowed)
        assert len(set(ids)) == len(ids) == min(2, len(allowed))
    assert len({tuple(sorted(ids_of(two, 4, r))) for r in range(0, 60, 3)}) == 3
    assert len(ids_of(available(TRACE, 9), 4, 0)) == 3


def test_a_trace_is_read_from_a_file(tmp_path):
    np.save(tmp_path / "trace.npy", np.array(TRACE, bool))
    (tmp_path / "trace.csv").write_text("\n".join(",".join(map(str, row)) for row in TRACE))
    for name in ("trace.npy", "trace.csv"):
        assert torch.equal(available(str(tmp_path / name)).trace, available(TRACE).trace)


def test_a_trace_that_is_none_is_refused(tmp_path):
    np.save(tmp_path / "evil.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "words.csv").write_text("yes,no")
    (tmp_path / "trace.txt").write_text("1")
    refused = {
        str(tmp_path / "evil.npy"): "cannot be read",
        str(tmp_path / "words.csv"): "cannot be read",
        str(tmp_path / "trace.txt"): "neither .npy nor .csv",
        str(tmp_path / "none.npy"): "there is no file",
    }
    for path, why in refused.items():
        with pytest.raises(ConfigError, match=why):
            available(path)
    for table, why in (([[1, 0], [1]], "differ in length"), ([[2, 0]], "other than 0 and 1"), ([], "has shape")):
        with pytest.raises(ConfigError, match=why):
            available(table)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (
            Fixed(50),
            r"cohort\.size: 50 clients cannot be drawn from 20\. Use at most 20, or cohort\.name = 'everyone'\.",
        ),
        (Poisson(size=21.0), r"cohort\.size: 21 clients cannot be drawn from 20"),
        (Poisson(), "one of probability and size"),
        (Poisson(probability=0.1, size=2.0), "one of probability and size"),
        (Poisson(probability=1.5), r"cohort\.probability: must be above 0 and at most 1 \(got 1\.5\)"),
        (Fraction(0.0), r"cohort\.share: must be above 0"),
        (Cyclic(6, 4), r"4 groups of 6 need 24 clients, and there are 20\. Use min_separation at most 3"),
        (Cyclic(50, 1), "50 clients cannot be drawn from 20"),
        (available(TRACE), r"cohort\.trace: has 4 clients, the population 20"),
    ],
)
def test_cohorts_that_cannot_be_drawn_are_refused(sampler, message):
    with pytest.raises(ConfigError, match=message):
        sampler.check(20)


@pytest.mark.parametrize("sampler", [Fixed(50), FixedWithReplacement(50), Fraction(5e-5), Poisson(size=50.0)], ids=repr)
def test_a_million_clients_cost_what_the_cohort_costs(sampler, monkeypatch):
    asked = []
    words = host.bits_at
    monkeypatch.setattr(host, "bits_at", lambda k, x0, x1: asked.append(len(x0)) or words(k, x0, x1))
    ids = ids_of(sampler, 10**6, 0)
    assert 10 < len(ids) < 120
    assert max(ids) > 500_000
    assert sum(asked) < 500


@pytest.mark.parametrize("sampler", [Cyclic(5, 10), CyclicPoisson(5.0, 10)], ids=repr)
def test_the_order_of_a_cycle_is_worked_out_once_in_a_run(sampler, monkeypatch):
    key = rng.key(77)
    sampler.sample(100_000, 0, key)
    asked = []
    words = host.bits_at
    monkeypatch.setattr(host, "bits_at", lambda k, x0, x1: asked.append(len(x0)) or words(k, x0, x1))
    sampler.sample(100_000, 1, key)
    assert sum(asked) < 100
