"""Poisson sampling within groups: who comes, what banded noise then costs, and a run from end to end.

Keys are fixed; bounds on frequencies are five standard errors, on correlations five and a half: with all that is
compared, a false alarm in about ten thousand keys.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll import rng
from atoll.core import Participation
from atoll.data.sampling import CyclicPoisson
from atoll.errors import ConfigError
from atoll.privacy import (
    ACCOUNTANTS,
    Analytic,
    Banded,
    Composed,
    Event,
    Gaussian,
    Laplace,
    Ledger,
    PrivacyPlan,
    Prv,
    Pure,
    Rdp,
    Sampled,
    TreeAggregation,
    explain,
    flatten,
    noise_for,
)
from atoll.privacy.composition import Term
from atoll.privacy.factorisation import banded
from atoll.privacy.ledger import COARSE
from atoll.privacy.run import SimulateTable
from atoll.privacy.run.descriptions import describe_sampler
from atoll.privacy.run.round_events import larger_system_event, sampled_event

KEY = rng.key(0, "cohort")
Array = np.ndarray[Any, np.dtype[np.float64]]


def came(sampler: CyclicPoisson, population: int, rounds: int) -> Array:
    """1 where a client came to a round, (rounds, population)."""
    sampler.check(population)
    found = np.zeros((rounds, population))
    for r in range(rounds):
        ids = sampler.sample(population, r, KEY)[0].tolist()
        assert len(set(ids)) == len(ids)
        found[r, ids] = 1
    return found


# Who comes


@given(population=st.integers(1, 40), min_separation=st.integers(1, 12), share=st.floats(0.01, 1.0))
def test_a_client_never_comes_twice_within_the_separation(population: int, min_separation: int, share: float) -> None:
    turns = came(
        CyclicPoisson(share * population / min_separation * (1 - 1e-12), min_separation), population, 4 * min_separation
    )
    for client in turns.T:
        at = np.flatnonzero(client)
        assert len(set(at % min_separation)) <= 1
        assert (np.diff(at) >= min_separation).all()


@pytest.mark.parametrize(("population", "size", "min_separation"), [(43, 3.0, 4), (30, 2.5, 7)])
def test_every_client_comes_to_its_turns_with_the_same_probability(
    population: int, size: float, min_separation: int
) -> None:
    cycles = 400
    turns = came(CyclicPoisson(size, min_separation), population, cycles * min_separation)
    rate = size * min_separation / population
    group = (turns.reshape(cycles, min_separation, population).sum(0) > 0).argmax(0)
    sizes = np.bincount(group, minlength=min_separation)
    assert sizes.max() - sizes.min() <= 1
    coins = turns.reshape(cycles, min_separation, population)[:, group, np.arange(population)]
    error = (rate * (1 - rate) / cycles) ** 0.5
    assert np.abs(coins.mean(0) - rate).max() < 5 * error
    together = np.corrcoef(coins.T)[~np.eye(population, dtype=bool)]  # coins of different clients
    again = [np.corrcoef(c[1:], c[:-1])[0, 1] for c in coins.T]  # coins of one client
    assert max(np.abs(together).max(), np.abs(again).max()) < 5.5 / cycles**0.5
    assert turns.sum() / len(turns) == pytest.approx(size, abs=5 * (size / len(turns)) ** 0.5)


def test_at_rate_one_everyone_of_a_group_comes() -> None:
    turns = came(CyclicPoisson(5.0, 4), 20, 8)
    assert (turns.sum(1) == 5).all()
    assert (turns[:4] == turns[4:]).all()
    assert (turns[:4].sum(0) == 1).all()


@pytest.mark.parametrize(
    ("sampler", "words"),
    [
        (CyclicPoisson(6.5, 4), "4 groups of 6.5 need 26 clients, and there are 20. Use min_separation at most 3"),
        (CyclicPoisson(50.0, 1), "50 clients cannot be drawn from 20"),
    ],
)
def test_groups_that_are_too_small_are_refused(sampler: CyclicPoisson, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        sampler.check(20)


def test_the_expected_cohort_is_that_of_one_group() -> None:
    how = CyclicPoisson(3.0, 4).sample(20, 0, KEY)[1]
    assert how == Participation("cyclic_poisson", 20, probability=0.6, min_separation=4)
    assert how.expected == 3.0
    assert describe_sampler(how) == "cyclic poisson, 3 of 20 clients on average, 4 rounds from turn to turn"
    found = sampled_event([Gaussian(1.0)], how)
    assert isinstance(found, Sampled)
    assert (found.scheme, found.cohort, found.min_separation, found.rate) == ("cyclic_poisson", 3.0, 4, 0.6)


# What it costs


def drawn(event: Event, how: str, cohort: float, min_separation: int = 1, count: int = 1) -> Composed:
    return Composed(((Sampled(event, how, 100, cohort, min_separation), count),))  # type: ignore[arg-type]


@pytest.mark.parametrize("event", [Gaussian(2.0), Laplace(2.0), Banded(2.0, 1, 1, 12)], ids=repr)
def test_with_one_group_it_is_poisson_sampling(event: Event) -> None:
    assert flatten(drawn(event, "cyclic_poisson", 5)) == flatten(drawn(event, "poisson", 5))


@pytest.mark.parametrize(
    "event", [Gaussian(2.0), Laplace(2.0), Pure(0.5), Banded(2.0, 4, 4, 12), TreeAggregation(2.0, 12, 4)]
)
def test_where_everyone_of_a_group_comes_nothing_is_amplified(event: Event) -> None:
    count = 1 if isinstance(event, Banded | TreeAggregation) else 12
    coins, cyclic = (flatten(drawn(event, how, 25, 4, count)) for how in ("cyclic_poisson", "cyclic"))
    assert (coins.terms, coins.adjacency) == (cyclic.terms, cyclic.adjacency)


@pytest.mark.parametrize(
    ("event", "terms"),
    [
        (drawn(Banded(2.0, 3, 4, 10), "cyclic_poisson", 5, 4), (Term(Gaussian(2.0), 3, rate=0.2),)),
        (drawn(Banded(2.0, 3, 3, 10), "cyclic_poisson", 5, 4), (Term(Gaussian(2.0), 3, rate=0.2),)),
        (drawn(Gaussian(2.0), "cyclic_poisson", 5, 4, 10), (Term(Gaussian(2.0), 3, rate=0.2),)),
        (drawn(Laplace(2.0), "cyclic_poisson", 2.5, 4, 8), (Term(Laplace(2.0), 2, rate=0.1),)),
        (drawn(Pure(0.5), "cyclic_poisson", 5, 4, 10), (Term(Pure(0.5), 3),)),
        (drawn(TreeAggregation(2.0, 4, 4), "cyclic_poisson", 5, 4), flatten(TreeAggregation(2.0, 4, 4)).terms),
        (
            drawn(Composed(((Banded(4.0, 4, 4, 4), 1), (Gaussian(2.0), 1))), "cyclic_poisson", 5, 4, 4),
            (Term(Gaussian(4.0), 1), Term(Gaussian(2.0), 1)),
        ),
    ],
)
def test_every_turn_is_one_sampled_mechanism_and_whatever_else_is_not_amplified(
    event: Event, terms: tuple[Term, ...]
) -> None:
    assert (flatten(event).terms, flatten(event).adjacency) == (terms, "zero-out")


def test_the_words_say_rate_groups_and_turns() -> None:
    said = explain(drawn(Banded(2.0, 3, 4, 10), "cyclic_poisson", 5, 4))
    assert said == (
        "adjacency zero-out; banded factorisation with 3 bands over 10 rounds: "
        "amplified by Poisson sampling at rate 0.2 within 4 groups, in 3 turns of a unit"
    )
    assert "no amplification" in explain(drawn(TreeAggregation(2.0, 12, 4), "cyclic_poisson", 5, 4))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: drawn(Gaussian(1.0), "cyclic_poisson", 30, 4), "4 groups of 30 need more units than there are, 100"),
        (lambda: PrivacyPlan(5, 10, 4.5, "cyclic_poisson", min_separation=3), "3 groups of 4.5 need 13.5 units"),
        (
            lambda: larger_system_event(
                [Gaussian(1.0)], SimulateTable(population=100, sampling="cyclic_poisson"), 30, 4
            ),
            "privacy.simulate.population: 4 groups of 30 need 120 clients",
        ),
    ],
)
def test_more_groups_than_there_are_units_for_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_separation_that_the_groups_do_not_keep_has_no_guarantee() -> None:
    assert "cyclic poisson sampling keeps 3" in str(
        flatten(drawn(Banded(1.0, 4, 4, 12), "cyclic_poisson", 5, 3)).broken
    )
    assert flatten(drawn(Banded(0.0, 4, 4, 12), "cyclic_poisson", 5, 4)).broken


def test_all_accountants_agree_from_above() -> None:
    event = drawn(Banded(1.0, 4, 4, 24), "cyclic_poisson", 5, 4)
    pld, prv, rdp = (accountant.epsilon(event, 1e-5) for accountant in (COARSE, Prv(), Rdp()))
    assert pld <= prv <= pld + 2 * Prv().error
    assert pld < rdp < 1.5 * pld
    assert pld < 0.5 * Analytic().epsilon(drawn(Banded(1.0, 4, 4, 24), "cyclic", 5, 4), 1e-5)
    assert "knows no amplification" in str(Analytic().supports(event))


def test_pfl_research_in_groups() -> None:
    """Population 1e6, cohort 1,000, 1,500 rounds, 48 bands and groups; without amplification 12.62."""
    plan = PrivacyPlan(1500, 1_000_000, 1000, "cyclic_poisson", "banded", min_separation=48)
    assert noise_for(plan.event, 2.0, 1e-6, COARSE, tolerance=1e-3) == pytest.approx(1.143, abs=2e-3)
    assert COARSE.epsilon(plan.event(0.532), 1e-6) == pytest.approx(11.93, abs=0.02)
    plain = PrivacyPlan(1500, 1_000_000, 1000, "cyclic", "banded", min_separation=48)
    assert noise_for(plain.event, 2.0, 1e-6, Analytic()) == pytest.approx(12.62, abs=5e-3)


# A slow oracle: the releases of a few rounds on a grid, with the coins of one client averaged out


def hockey_stick(noise: float, rate: float, rounds: int, first: int, epsilon: float) -> tuple[float, float]:
    """delta of 2-banded noise where one client's turns are first, first + 2, ..., both ways; nothing of the theorem.

    Densities of what is released, x = others + coin x sent + C⁻¹z: what the client sends and what the others do follows
    the releases before. Points are even in C x, where the volume is the same everywhere.
    """
    c = banded(rounds, 2)
    matrix = sum(np.diag(np.full(rounds - k, c[k]), -k) for k in range(2))
    axis = np.arange(-6.5 * noise, 1 + 6.5 * noise, noise / 6)
    points = np.stack(np.meshgrid(*[axis] * rounds, indexing="ij")).reshape(rounds, -1)
    x = np.linalg.solve(matrix, points)
    others = np.stack([0.3 * np.tanh(x[t - 1]) if t else 0 * x[0] for t in range(rounds)])
    sent = np.stack([np.sign(x[t - 1] + 0.1) if t else 1 + 0 * x[0] for t in range(rounds)])

    def density(coins: Array) -> Array:
        z = matrix @ (x - others - coins[:, None] * sent)
        found: Array = np.exp(-np.square(z).sum(0) / (2 * noise**2))
        return found

    turns = range(first, rounds, 2)
    without, mixed = density(np.zeros(rounds)), np.zeros(points.shape[1])
    for which in np.ndindex(*[2] * len(turns)):
        coins = np.zeros(rounds)
        coins[list(turns)] = which
        mixed += rate ** sum(which) * (1 - rate) ** (len(turns) - sum(which)) * density(coins)
    total = without.sum()
    assert mixed.sum() == pytest.approx(total, rel=1e-2)
    above = [np.maximum(a - np.exp(epsilon) * b, 0).sum() / total for a, b in ((mixed, without), (without, mixed))]
    return float(above[0]), float(above[1])


@pytest.mark.parametrize(("noise", "rate", "epsilon"), [(0.8, 0.3, 1.0), (0.6, 0.1, 1.5)])
@pytest.mark.parametrize(("rounds", "first", "turns"), [(2, 0, 1), (3, 0, 2), (3, 1, 1)])
def test_the_account_is_above_the_truth_of_a_small_case(
    noise: float, rate: float, epsilon: float, rounds: int, first: int, turns: int
) -> None:
    truth = max(hockey_stick(noise, rate, rounds, first, epsilon))
    event = drawn(Banded(noise, 2, 2, rounds), "cyclic_poisson", 50 * rate, 2)
    accounted = COARSE.delta(event, epsilon)
    assert truth <= accounted * (1 + 1e-3)
    if turns * 2 == rounds:  # whole columns, and as many turns as are counted: it is exact
        assert truth == pytest.approx(accounted, rel=5e-3)
    wrong = drawn(Banded(noise, 2, 2, rounds), "cyclic_poisson", 50 * rate / 2, 2)  # the rate of a round, not of a turn
    if turns > 1 or rounds == 2:
        assert truth > COARSE.delta(wrong, epsilon)


# Ledgers and runs


def test_a_ledger_counts_turns_and_bounds_every_line() -> None:
    event = Sampled(Banded(1.2, 4, 4, 9), "cyclic_poisson", 400, 30, 4)
    book, before = Ledger(9, 1e-4), 0.0
    for number in range(1, 10):
        book.add(event)
        bound = book.bound()
        assert bound >= before
        before = bound
        if number in (4, 5, 9):
            assert book.epsilon() <= bound * (1 + 1e-9)
            assert book.terms().terms == (Term(Gaussian(1.2), -(-number // 4), rate=0.3),)
    assert book.bound() == pytest.approx(COARSE.epsilon(Composed(((event, 1),)), 1e-4), rel=2e-3)


def test_a_budget_affords_whole_turns() -> None:
    event = Sampled(Banded(1.2, 4, 4, 40), "cyclic_poisson", 400, 30, 4)
    budget = ACCOUNTANTS["rdp"].epsilon(Composed(((Sampled(Gaussian(1.2), "poisson", 400, 120), 5),)), 1e-4)
    book = Ledger(40, 1e-4, "rdp")
    while book.affords(event, budget + 1e-6):
        book.add(event)
        assert book.count < 40
    assert book.count == 20  # five turns of every group


BASE: dict[str, Any] = {
    "rounds": 8,
    "data": "digits",
    "partition": {"name": "iid", "clients": 60},
    "cohort": {"name": "cyclic_poisson", "size": 8.0, "min_separation": 3},
    "transform": [
        "equal_weights",
        {"name": "clip_l2", "max_norm": 0.5},
        {"name": "banded_noise", "epsilon": 3.0, "delta": 1e-3},
    ],
    "algorithm": {"name": "fedavg", "lr": 0.2},
    "local": {"batch": 8},
    "task": {"model": "linear"},
    "evaluate": {"every": 4, "clients": 0},
    "engine": {"name": "vector"},
    "checkpoint": {"every": 2},
}


def test_a_run_keeps_its_epsilon(tmp_path: Path) -> None:
    whole = atoll.run(BASE, tmp_path / "run")
    said = whole.info["privacy"]["client"]
    assert said["holds"]
    assert 2.9 < said["epsilon"] <= 3.0
    assert (said["accountant"], said["adjacency"]) == ("pld", "zero-out")
    assert said["sampler"] == "cyclic poisson, 8 of 60 clients on average, 3 rounds from turn to turn"
    assert "rate 0.4 within 3 groups, in 3 turns of a unit" in said["assumed"][0]
    lines = [entry["privacy"]["epsilon"] for entry in whole.history]
    assert lines == sorted(lines)
    assert said["epsilon"] * (1 - 1e-6) <= lines[-1] <= 1.01 * said["epsilon"]


def test_a_resumed_run_keeps_its_account(tmp_path: Path) -> None:
    def watch(done: int, rounds: int, entry: Any) -> None:
        if done == 5:
            raise KeyboardInterrupt

    base = {**BASE, "privacy": {"accountant": "rdp"}}
    whole = atoll.run(base, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        atoll.run(base, tmp_path / "cut", watch=watch)
    resumed = atoll.run(base, tmp_path / "cut", resume=True)
    assert whole.info["privacy"]["client"]["holds"]
    assert resumed.info["privacy"] == whole.info["privacy"]
    assert [e["privacy"] for e in resumed.history] == [e["privacy"] for e in whole.history]


def test_a_noisy_sum_is_divided_by_the_clients_of_a_group(tmp_path: Path) -> None:
    """Without noise, with everyone of a group: the same model as cyclic groups of that size."""
    quiet = ["equal_weights", {"name": "clip_l2", "max_norm": 0.5}, {"name": "banded_noise", "noise_multiplier": 0.0}]
    runs = [
        atoll.run({**BASE, "rounds": 3, "transform": quiet, "cohort": cohort}, tmp_path / cohort["name"])
        for cohort in (
            {"name": "cyclic", "size": 20, "min_separation": 3},
            {"name": "cyclic_poisson", "size": 20.0, "min_separation": 3},
        )
    ]
    gap = atoll.tree.norm(atoll.tree.sub(runs[0].params, runs[1].params)) / atoll.tree.norm(runs[0].params)
    assert float(gap) < 1e-6


def test_a_larger_system_may_have_groups(tmp_path: Path) -> None:
    noise = {"name": "banded_noise", "epsilon": 2.0, "delta": 1e-4, "bands": 3, "noise_cohort": 100}
    run = atoll.run(
        {
            **BASE,
            "cohort": {"name": "fixed", "size": 8},
            "transform": [*BASE["transform"][:2], noise],
            "privacy": {"simulate": {"population": 3000, "sampling": "cyclic_poisson"}, "accountant": "rdp"},
        },
        tmp_path / "run",
    )
    assert not run.info["privacy"]["client"]["holds"]
    told = run.info["privacy"]["simulates"]
    assert 1.9 < told["epsilon"] <= 2.0
    assert "rate 0.1 within 3 groups, in 3 turns" in told["assumed"][0]
