"""What a run has spent: the ledger against the accountants, round by round."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.privacy import (
    ACCOUNTANTS,
    Analytic,
    Banded,
    Composed,
    Event,
    Gaussian,
    Laplace,
    Ledger,
    NotPrivate,
    Pld,
    Rdp,
    Sampled,
    TreeAggregation,
)
from tests.support.examples import few_examples


def poisson(z: float, rate: float = 0.02) -> Event:
    return Sampled(Gaussian(z), "poisson", 1000, 1000 * rate)


def everyone(event: Event) -> Event:
    return Sampled(event, "everyone", 50, 50)


def drawn(event: Event) -> Event:
    return Sampled(event, "poisson", 1000, 100)


def in_turns(event: Event) -> Event:
    return Sampled(event, "cyclic", 1000, 100, min_separation=7)


def filled(event: Event, rounds: int, of: int | None = None) -> Ledger:
    book = Ledger(of or rounds, 1e-5)
    for _ in range(rounds):
        book.add(event)
    return book


def test_nothing_done_is_nothing_spent() -> None:
    book = Ledger(10, 1e-5)
    assert (book.count, book.epsilon(), book.bound()) == (0, 0.0, 0.0)


@given(st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=1, max_size=12))
def test_the_order_of_rounds_and_how_they_are_counted_do_not_matter(noises: list[float]) -> None:
    book = Ledger(len(noises), 1e-5)
    for z in noises:
        book.add(everyone(Gaussian(z)))
    one = 1 / math.sqrt(sum(z**-2 for z in noises))
    assert book.count == len(noises)
    assert book.epsilon() == pytest.approx(Analytic().epsilon(everyone(Gaussian(one)), 1e-5), rel=1e-6)


@pytest.mark.parametrize(
    "event",
    [poisson(1.0), everyone(Gaussian(5.0)), Sampled(Gaussian(2.0), "without_replacement", 1000, 20)],
    ids=["poisson", "everyone", "fixed"],
)
def test_the_bound_of_a_line_is_never_below_the_accountant_and_never_far_above(event: Event) -> None:
    book = Ledger(30, 1e-5)
    before = 0.0
    for number in range(1, 31):
        book.add(event)
        bound = book.bound()
        assert bound >= before
        before = bound
        if number in (1, 2, 7, 30):
            exact = book.epsilon()
            assert exact * (1 - 1e-9) <= bound
            assert bound <= 1.5 * exact
    assert before == pytest.approx(exact, rel=2e-3)


def test_a_laplace_sum_on_a_poisson_cohort_has_a_bound_in_every_line() -> None:
    book = filled(Sampled(Laplace(3.0), "poisson", 500, 10), 6)
    assert book.epsilon() <= book.bound() < 2 * book.epsilon()


@pytest.mark.slow
def test_noise_that_changes_in_every_round_is_bounded_without_composing_it_all_anew() -> None:
    book = Ledger(40, 1e-5)
    for number in range(40):
        book.add(poisson(1.0 + number / 40))
    assert len(book.parts) == 40
    assert book.bound() == Rdp().epsilon(book.event(), 1e-5)


@pytest.mark.parametrize(
    "noise", [Banded(2.0, 4, 4, 100), TreeAggregation(2.0, 100, min_separation=4, pattern="cyclic")], ids=repr
)
def test_noise_for_a_whole_run_is_charged_for_the_rounds_so_far(noise: Banded | TreeAggregation) -> None:
    drawn = Sampled(noise, "cyclic", 100, 10, min_separation=4)
    few, many = filled(drawn, 4, 100), filled(drawn, 100)
    assert few.bound() < many.bound()
    assert many.epsilon() == pytest.approx(ACCOUNTANTS["analytic"].epsilon(Composed(((drawn, 1),)), 1e-5))


def test_one_round_without_a_guarantee_leaves_the_run_without_one() -> None:
    book = filled(everyone(Gaussian(4.0)), 3, 10)
    book.add(NotPrivate("the noise was lost"))
    assert book.terms().broken == "the noise was lost"
    assert book.bound() == book.epsilon() == math.inf


@pytest.mark.parametrize("z", [2.0, 4.0, 9.0])
def test_a_budget_affords_every_round_that_it_can_and_none_that_it_cannot(z: float) -> None:
    event, budget = everyone(Gaussian(z)), 3.0
    book = Ledger(1000, 1e-5)
    while book.affords(event, budget):
        book.add(event)
        assert book.count < 1000
    assert filled(event, max(1, book.count)).epsilon() <= budget or book.count == 0
    assert filled(event, book.count + 1).epsilon() > budget


def test_a_budget_is_asked_again_when_the_noise_changes() -> None:
    book = filled(everyone(Gaussian(50.0)), 20, 1000)
    assert book.affords(everyone(Gaussian(50.0)), 1.0)
    assert not book.affords(everyone(Gaussian(0.5)), 1.0)
    assert book.affords(everyone(Gaussian(50.0)), 1.0)


@few_examples
@given(st.sampled_from([everyone, drawn, in_turns]), st.floats(0.7, 8.0), st.integers(2, 40))
def test_lines_are_bounds_of_the_accountant_and_never_go_down(
    how: Callable[[Event], Event], noise: float, rounds: int
) -> None:
    book, before = Ledger(rounds, 1e-5), 0.0
    for n in range(1, rounds + 1):
        book.add(how(Gaussian(noise)))
        line = book.bound()
        assert line >= before
        if n % 7 == 1 or n == rounds:
            assert line >= book.epsilon() * (1 - 1e-9)
        before = line
    assert before == pytest.approx(book.epsilon(), rel=1e-3)


def test_a_book_that_is_opened_late_has_the_same_lines() -> None:
    for event in (everyone(Gaussian(3.0)), drawn(Gaussian(1.0))):
        whole = Ledger(50, 1e-5)
        for n in range(1, 51):
            whole.add(event)
            line = whole.bound()
            if n in (2, 13, 37, 50):
                assert filled(event, n, 50).bound() == pytest.approx(line, rel=1e-9)


def test_a_budget_for_a_drawn_cohort_is_spent_to_the_last_round_with_few_distributions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    real = Pld._epsilon
    monkeypatch.setattr(Pld, "_epsilon", lambda self, t, d: asked.append(1) or real(self, t, d))  # type: ignore[func-returns-value]
    event, book = drawn(Gaussian(2.0)), Ledger(100, 1e-5)
    while book.affords(event, 1.5):
        book.add(event)
    assert 2 < book.count < 100
    assert len(asked) < 15
    assert filled(event, book.count).epsilon() <= 1.5 < filled(event, book.count + 1).epsilon()


@pytest.mark.slow
def test_lines_do_not_go_down_when_noise_grows_and_do_not_depend_on_who_read_them() -> None:
    book, late, before = Ledger(60, 1e-5), Ledger(60, 1e-5), 0.0
    for event in [drawn(Gaussian(0.8))] * 22 + [drawn(Gaussian(50.0))] * 3:
        book.add(event)
        late.add(event)
        assert book.bound() >= max(before, book.epsilon())
        before = book.bound()
    assert late.bound() == before


def test_many_different_rounds_that_only_loss_distributions_know_are_bounded() -> None:
    book = Ledger(20, 1e-5)
    for i in range(18):
        book.add(drawn(Laplace(5.0 + i)))
    assert book.epsilon() <= book.bound() < math.inf
