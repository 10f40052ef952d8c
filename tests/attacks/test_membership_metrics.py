"""Membership scores as numbers: against brute force, other programs, and mechanisms whose epsilon is known."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, norm
from sklearn.metrics import roc_auc_score

from atoll import privacy
from atoll.attacks import lira, membership_metrics
from atoll.attacks.membership_metrics import advantage, auc, clopper_pearson, epsilon_lower, judge, tpr_at
from atoll.errors import ConfigError, DataError
from tests.support.examples import few_examples

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]
few = st.lists(st.integers(0, 6).map(float), min_size=2, max_size=12)  # with ties


@given(few, few)
def test_the_auc_is_the_share_of_pairs_in_order(members: list[float], others: list[float]) -> None:
    pairs = [(m > o) + (m == o) / 2 for m in members for o in others]
    value, low, high = auc(members, others)
    assert value == pytest.approx(np.mean(pairs))
    assert low <= value <= high


def test_the_auc_is_that_of_scikit_learn() -> None:
    draw = np.random.default_rng(0)
    members, others = draw.normal(0.4, 1, 300).round(1), draw.normal(0, 1, 200).round(1)
    truth = roc_auc_score(np.repeat([1, 0], [300, 200]), np.concatenate([members, others]))
    assert auc(members, others)[0] == pytest.approx(truth)


def test_the_auc_interval_is_delongs() -> None:
    draw = np.random.default_rng(5)
    members, others = draw.normal(0.5, 1, 30).round(1), draw.normal(0, 2, 11).round(1)
    order = (members[:, None] > others) + (members[:, None] == others) / 2
    std = math.sqrt(order.mean(1).var(ddof=1) / 30 + order.mean(0).var(ddof=1) / 11)
    area = order.mean()
    half = norm.ppf(0.95) * std / (area * (1 - area))  # of log(area / (1 - area)), by the delta method
    ends = [1 / (1 + math.exp(-(math.log(area / (1 - area)) + side * half))) for side in (-1, 1)]
    assert auc(members, others, 0.9) == pytest.approx((area, *ends))


def test_the_auc_interval_covers_as_often_as_it_says() -> None:
    draw, truth, missed = np.random.default_rng(1), norm.cdf(1 / math.sqrt(2)), 0
    for _ in range(400):
        _, low, high = auc(draw.normal(1, 1, 60), draw.normal(0, 1, 80))
        missed += not low <= truth <= high
    assert binom.ppf(1e-4, 400, 0.05) <= missed <= binom.ppf(1 - 1e-4, 400, 0.06)  # DeLong's is approximate


def test_scores_without_an_overlap_do_not_make_one_certain() -> None:
    value, low, high = auc([3.0] * 30, [1.0] * 50)
    assert (value, high) == (1.0, 1.0)
    assert low == pytest.approx(0.025 ** (1 / 30))  # 30 pairs in order, of 30


@given(few, few, st.sampled_from([0.0, 0.1, 0.3, 1.0]))
def test_the_tpr_is_the_best_of_all_thresholds_that_keep_the_rate(m: list[float], o: list[float], rate: float) -> None:
    members, others = np.array(m), np.array(o)
    thresholds = [-math.inf, *m, *o]
    allowed = [(members > t).mean() for t in thresholds if (others > t).mean() <= rate + 1e-9]
    assert tpr_at(members, others, rate)[0] == max(allowed)


@given(st.integers(0, 40), st.integers(0, 40), st.sampled_from([0.5, 0.95, 0.999]))
def test_shares_have_the_exact_interval(k: int, more: int, confidence: float) -> None:
    n = k + more + 1
    truth = binomtest(k, n).proportion_ci(confidence, "exact")
    assert clopper_pearson(k, n, confidence) == pytest.approx((truth.low, truth.high), abs=1e-9)


@few_examples
@given(st.integers(0, 10**6), st.sampled_from([0.0, 1e-3, 0.1]))
def test_the_bound_is_what_a_slow_program_finds(seed: int, delta: float) -> None:
    draw = np.random.default_rng(seed)
    members, others = draw.normal(2, 1, 40).round(1), draw.normal(0, 1, 50).round(1)
    (m1, o1), (m2, o2) = membership_metrics._halves(members, others)
    assert sorted([*m1, *m2, *o1, *o2]) == sorted([*members, *others])

    def bound(m: Floats, o: Floats, t: float) -> float:
        fnr, fpr = (
            binomtest(int(k), n).proportion_ci(0.95, "exact").high  # one of two tails of 2.5 %
            for k, n in (((m <= t).sum(), len(m)), ((o > t).sum(), len(o)))
        )
        ways = [(1 - delta - fpr) / fnr, (1 - delta - fnr) / fpr]
        return math.log(max(*ways, 1e-300))

    there = sorted({*m1, *o1})
    best = max([-math.inf, *((a + b) / 2 for a, b in pairwise(there)), there[-1]], key=lambda t: bound(m1, o1, t))
    assert epsilon_lower(members, others, delta) == pytest.approx(max(0.0, bound(m2, o2, best)), abs=1e-6)


def alarms(
    scores: Callable[[np.random.Generator], tuple[Floats, Floats]], claim: float, delta: float, audits: int = 400
) -> int:
    """In how many audits the bound is above what is claimed."""
    draw = np.random.default_rng(2)
    return sum(epsilon_lower(*scores(draw), delta) > claim for _ in range(audits))


def randomised_response(draw: np.random.Generator, epsilon: float, n: int) -> tuple[Floats, Floats]:
    kept = math.exp(epsilon) / (1 + math.exp(epsilon))
    return (draw.random(n) < kept).astype(float), (draw.random(n) >= kept).astype(float)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_randomised_response_is_not_accused(epsilon: float) -> None:
    """At most 5 % of audits may be wrong; more than this would be seen once in 10,000 tests."""
    wrong = alarms(lambda draw: randomised_response(draw, epsilon, 300), epsilon, 0.0)
    assert wrong <= binom.ppf(1 - 1e-4, 400, 0.05)
    if epsilon:  # a claim of half as much is found out
        caught = alarms(lambda draw: randomised_response(draw, epsilon, 300), epsilon / 2, 0.0)
        assert caught > 300


@pytest.mark.slow
def test_the_gaussian_mechanism_is_not_accused_and_half_its_noise_is() -> None:
    delta = 1e-3
    truth = privacy.Analytic().epsilon(privacy.Gaussian(1.0), delta)

    def scores(noise: float, n: int) -> Callable[[np.random.Generator], tuple[Floats, Floats]]:
        return lambda draw: (1 + noise * draw.normal(size=n), noise * draw.normal(size=n))

    assert alarms(scores(1.0, 1000), truth, delta) <= binom.ppf(1 - 1e-4, 400, 0.05)
    assert alarms(scores(0.5, 20_000), truth, delta, audits=10) == 10


def test_what_all_scores_of_a_run_share_accuses_nobody() -> None:
    """Fair coins, one run: a shift of all scores says nothing of any coin."""

    def scores(draw: np.random.Generator) -> tuple[Floats, Floats]:
        coins = draw.random(600) < 0.5
        told = np.where(draw.random(600) < math.e / (1 + math.e), coins, ~coins) + draw.normal() * 10
        return told[coins], told[~coins]

    assert alarms(scores, 1.0, 0.0) <= binom.ppf(1 - 1e-4, 400, 0.05)


def test_the_advantage_is_not_flattered_by_its_threshold() -> None:
    """Scores that say nothing: the best threshold of all would always find something."""
    draw = np.random.default_rng(3)
    found = [advantage(draw.normal(size=40), draw.normal(size=40)) for _ in range(400)]
    values = [value for value, _, _ in found]
    assert abs(np.mean(values)) < 4 * np.std(values) / math.sqrt(len(values))  # once in 16,000
    assert sum(not low <= 0 <= high for _, low, high in found) <= binom.ppf(1 - 1e-4, 400, 0.05)
    assert advantage(np.arange(10.0) + 20, np.arange(10.0))[0] == 1.0


def test_a_verdict_says_what_it_rests_on() -> None:
    found = judge([2.0, 3.0, 4.0], [0.0, 1.0], 1e-5, note="by hand")
    assert (found.members, found.others, found.delta, found.confidence) == (3, 2, 1e-5, 0.95)
    assert found.note == "by hand; FPR 0.01 and 0.001: no false alarm among 2 others"
    assert judge(np.arange(5.0), np.arange(100.0), 0.0).note == "FPR 0.001: no false alarm among 100 others"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: judge([1.0], [0.0, 1.0], 0), "members: needs two scores or more"),
        (lambda: judge([1.0, 2.0], [0.0, math.nan], 0), "others: 1 scores are not a number"),
        (lambda: judge([1.0, 2.0], [0.0, 1.0], 1.0), "delta: must be at least 0 and below 1"),
        (lambda: judge([1.0, 2.0], [0.0, 1.0], 0, confidence=1.0), "confidence: must be between 0 and 1"),
        (lambda: lira.likelihood_ratio(np.zeros(1), np.zeros((2, 1)), np.eye(2, 1) > 0), "in pairs"),
    ],
)
def test_what_cannot_be_judged_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises((ConfigError, DataError), match=words):
        call()


def test_a_confidence_on_the_logit_scale_is_the_odds() -> None:
    p = np.array([1e-6, 0.3, 0.5, 0.999])
    assert lira.logit_confidence(-np.log(p)) == pytest.approx(np.log(p / (1 - p)))
    assert np.isfinite(lira.logit_confidence(np.array([0.0, 1e-12, 500.0]))).all()


@pytest.mark.parametrize("shadows", [6, 80])
def test_the_ratio_is_that_of_two_normal_densities(shadows: int) -> None:
    draw = np.random.default_rng(4)
    inside = np.concatenate([draw.random((shadows // 2, 5)) < 0.5] * 2)
    inside[shadows // 2 :] ^= True
    values = draw.normal(size=(shadows, 5)) + 2 * inside
    target = draw.normal(size=5)
    means = [[values[c[:, u], u].mean() for u in range(5)] for c in (inside, ~inside)]
    stds = np.array([[values[c[:, u], u].std(ddof=1) for u in range(5)] for c in (inside, ~inside)])
    if shadows < 64:  # too few to know each one's
        stds = np.sqrt((stds**2).mean(1, keepdims=True))
    slow = norm.logpdf(target, means[0], stds[0]) - norm.logpdf(target, means[1], stds[1])
    assert lira.likelihood_ratio(target, values, inside) == pytest.approx(slow)
