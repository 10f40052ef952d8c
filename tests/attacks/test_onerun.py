"""The lower bound from right guesses: against all mechanisms there are, against the published one, and as seldom wrong
as it says. Nothing here is drawn.
"""

import doctest
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import binom

from atoll.attacks.onerun import best_bound, lower_bound, p_value
from atoll.errors import ConfigError
from tests.support.paths import ROOT


def published(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Theorem 5.2 of Steinke et al. as it stands: P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i."""
    pmf = binom.pmf(np.arange(r + 1), r, 1 / (1 + math.exp(-epsilon)))
    most = max((pmf[v - i : v].sum() / i for i in range(1, v + 1)), default=0.0)
    return float(min(1.0, pmf[v:].sum() + 2 * m * delta * most))


def worst(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """The most likely v right guesses out of r are over ALL (epsilon, delta)-DP mechanisms: a linear programme.

    Unknown are P[guesses | coins], and for each pair of neighbours and each guess what is above e^epsilon times.
    """
    coins = list(itertools.product((-1, 1), repeat=m))
    guesses = [g for g in itertools.product((-1, 0, 1), repeat=m) if sum(map(abs, g)) == r]
    pairs = [(a, b) for a in coins for b in coins if sum(x != y for x, y in zip(a, b, strict=True)) == 1]
    at = {(c, g): i for i, (c, g) in enumerate(itertools.product(coins, guesses))}
    above = {(p, g): len(at) + i for i, (p, g) in enumerate(itertools.product(pairs, guesses))}
    n = len(at) + len(above)
    aim, rows, limits, ones = np.zeros(n), [], [], []
    for (c, g), i in at.items():
        aim[i] = -(sum(x == y for x, y in zip(c, g, strict=True)) >= v) / len(coins)
    for ((a, b), g), i in above.items():
        row = np.zeros(n)
        row[at[a, g]], row[at[b, g]], row[i] = 1.0, -math.exp(epsilon), -1.0
        rows.append(row)
        limits.append(0.0)
    for pair in pairs:
        row = np.zeros(n)
        row[[above[pair, g] for g in guesses]] = 1.0
        rows.append(row)
        limits.append(delta)
    for c in coins:
        row = np.zeros(n)
        row[[at[c, g] for g in guesses]] = 1.0
        ones.append(row)
    found = linprog(aim, np.array(rows), np.array(limits), np.array(ones), np.ones(len(coins)), bounds=(0, 1))
    assert found.success
    return float(-found.fun)


CASES = [(m, r, v) for m in (1, 2, 3) for r in range(1, m + 1) for v in range(1, r + 1)]
BUDGETS = [(0.5, 0.0), (2.0, 0.0), (0.5, 0.02), (1.0, 0.1), (3.0, 1e-3), (0.0, 0.05)]


@pytest.mark.parametrize(("m", "r", "v"), CASES)
@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_the_p_value_is_that_of_the_worst_of_all_mechanisms(
    m: int, r: int, v: int, epsilon: float, delta: float
) -> None:
    assert p_value(m, r, v, epsilon, delta) == pytest.approx(worst(m, r, v, epsilon, delta), abs=1e-7)


def worst_alike(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """The same for more units: mechanisms that treat all units and both answers alike, which loses nothing.

    Averaging a mechanism over the order of units and over the answers' names keeps its privacy and its right guesses.
    Then P[guesses | coins] = y_k, k the number of right ones; C(m, r) C(r, k) y_k is the probability of k.
    """
    n, e = 3 * r + 1, math.exp(epsilon)  # y_0 ... y_r, then what is above e^epsilon times, upwards and downwards
    rows, limits, aim, one, paid = [], [], np.zeros(n), np.zeros(n), np.zeros(n)
    for k in range(1, r + 1):
        for a, b, slack in ((k, k - 1, r + k), (k - 1, k, 2 * r + k)):
            row = np.zeros(n)
            row[a], row[b], row[slack] = 1.0, -e, -1.0
            rows.append(row)
            limits.append(0.0)
            paid[slack] = math.comb(r - 1, k - 1)
    for k in range(r + 1):
        one[k] = math.comb(r, k)
        aim[k] = -one[k] if k >= v else 0.0
    found = linprog(aim, np.array([*rows, paid]), [*limits, delta * m / r], one[None], [1.0], bounds=(0, None))
    assert found.success
    return float(-found.fun)


@pytest.mark.parametrize(("m", "r"), [(3, 3), (8, 8), (8, 5), (12, 12), (30, 10)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.2, 1e-3), (1.0, 1e-2), (2.0, 1e-4), (0.5, 0.2)])
def test_the_p_value_is_attained_with_more_units_too(m: int, r: int, epsilon: float, delta: float) -> None:
    for v in range(1, r + 1):
        assert p_value(m, r, v, epsilon, delta) == pytest.approx(worst_alike(m, r, v, epsilon, delta), abs=1e-6)


@given(st.data())
def test_it_says_at_least_as_much_as_the_published_theorem(data: st.DataObject) -> None:
    m = data.draw(st.integers(1, 400))
    r = data.draw(st.integers(1, m))
    v = data.draw(st.integers(1, r))
    epsilon = data.draw(st.floats(0.0, 6.0))
    delta = data.draw(st.sampled_from([0.0, 1e-7, 1e-4, 1e-2]))
    theirs = published(m, r, v, epsilon, delta)
    if delta == 0.0:
        assert p_value(m, r, v, epsilon, delta) == pytest.approx(theirs, rel=1e-8, abs=1e-14)
    elif theirs < 0.5:
        assert p_value(m, r, v, epsilon, delta) <= theirs * (1 + 1e-8)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize(("m", "r"), [(50, 50), (1000, 200)])
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-2])
def test_randomised_response_is_accused_as_seldom_as_stated(epsilon: float, m: int, r: int, delta: float) -> None:
    # Exactly: the probability of all counts whose bound is above the truth.
    right = 1 / (1 + math.exp(-epsilon))
    for confidence in (0.8, 0.95):
        refuted = [v for v in range(r // 2, r + 1) if lower_bound(m, r, v, delta, confidence) > epsilon]
        accused = sum(binom.pmf(v, r, right) for v in refuted)
        assert accused <= 1 - confidence
        if delta == 0.0 and r >= 100:
            assert accused > 0.3 * (1 - confidence)  # and not for being useless


@given(st.integers(1, 300), st.data())
def test_the_bound_grows_with_right_guesses_and_shrinks_with_delta_and_confidence(m: int, data: st.DataObject) -> None:
    r = data.draw(st.integers(1, m))
    v = data.draw(st.integers(1, r))
    low = lower_bound(m, r, v, 1e-5, 0.95)
    assert low >= lower_bound(m, r, v - 1, 1e-5, 0.95) - 1e-8
    assert low >= lower_bound(m, r, v, 1e-3, 0.95) - 1e-8
    assert low >= lower_bound(m, r, v, 1e-5, 0.99) - 1e-8


@given(st.integers(2, 400), st.data())
def test_what_refutes_an_epsilon_refutes_every_smaller_one(m: int, data: st.DataObject) -> None:
    r = data.draw(st.integers(1, m))
    v = data.draw(st.integers(r // 2, r))
    delta = data.draw(st.sampled_from([0.0, 1e-6, 1e-3, 0.05]))
    values = [p_value(m, r, v, e, delta) for e in np.linspace(0, 8, 60)]
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(values))


def test_all_guesses_right_has_a_closed_form_without_delta() -> None:
    q = 0.05 ** (1 / 500)  # q^500 = 0.05
    assert lower_bound(1000, 500, 500, 0.0, 0.95) == pytest.approx(math.log(q / (1 - q)), abs=1e-6)


def test_it_says_much_more_where_units_times_delta_is_large() -> None:
    assert published(4000, 250, 240, 0.0, 1e-3) > 0.05  # refutes nothing
    assert lower_bound(4000, 250, 240, 1e-3, 0.95) > 2.0


def test_guesses_that_no_float_can_tell_from_impossible_still_count_delta() -> None:
    # Every guess right needs a release of everything, which m delta / r allows for; W alone: 2^-5000.
    assert p_value(10_000, 5000, 5000, 0.0, 1e-3) == pytest.approx(10_000 * 1e-3 / 5000, rel=1e-9)


def test_several_numbers_of_guesses_share_the_doubt() -> None:
    tries = [(100, 90), (200, 180), (400, 280)]
    best = best_bound(1000, tries, 1e-5, 0.95)
    assert best.epsilon == max(lower_bound(1000, g, c, 1e-5, 1 - 0.05 / 3) for g, c in tries)
    assert (best.guesses, best.correct) == (200, 180)
    assert best.epsilon < lower_bound(1000, 200, 180, 1e-5, 0.95)
    assert best_bound(10, [], 1e-5).epsilon == 0.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"correct": 11}, "11 right of 10 guesses about 20 units cannot be"),
        ({"guesses": 30, "correct": 3}, "30 guesses about 20 units"),
        ({"delta": 1.0}, "delta: must be at least 0 and below 1"),
        ({"confidence": 1.0}, "confidence: must be above 0 and below 1"),
        ({"confidence": float("nan")}, "confidence"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, float], words: str) -> None:
    given_ = {"units": 20, "guesses": 10, "correct": 5, "delta": 1e-3, "confidence": 0.95, **change}
    with pytest.raises(ConfigError, match=words):
        lower_bound(**given_)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="epsilon"):
        p_value(20, 10, 5, -1.0, 1e-3)


def test_the_page_says_what_happens() -> None:
    page = ROOT / "docs" / "audits.md"
    found = doctest.testfile(str(page), module_relative=False)
    assert found.attempted
    assert not found.failed
    text = page.read_text("utf-8")
    assert f"and epsilon {lower_bound(4000, 250, 240, 1e-3):.1f} by this one" in text
    assert published(4000, 250, 240, 0.0, 1e-3) > 0.05
    assert f"{p_value(3, 3, 2, 3.0, 1e-3):.5f}\nagainst {published(3, 3, 2, 3.0, 1e-3):.5f}" in text
