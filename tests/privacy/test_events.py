"""What a mechanism did, and how it is accounted for the sampler that ran."""

import math
from collections.abc import Callable

import pytest

from atoll.errors import ConfigError
from atoll.privacy import (
    ACCOUNTANTS,
    Analytic,
    Approximate,
    Banded,
    Composed,
    DistributedDiscreteGaussian,
    DistributedSkellam,
    Event,
    Gaussian,
    Laplace,
    NotPrivate,
    Pld,
    Prv,
    Pure,
    Rdp,
    Sampled,
    TreeAggregation,
    explain,
    flatten,
)
from atoll.privacy.composition import Term, combined


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Gaussian(-1.0), r"gaussian.noise_multiplier: must be 0 or between 1e-10 and 1e10 \(got -1.0\)"),
        (lambda: Gaussian(math.inf), "gaussian.noise_multiplier: must be 0 or between 1e-10 and 1e10"),
        (lambda: Gaussian(math.nan), "gaussian.noise_multiplier: must be 0 or between 1e-10 and 1e10"),
        (lambda: Gaussian(1e-200), "gaussian.noise_multiplier: must be 0 or between 1e-10 and 1e10"),
        (lambda: DistributedSkellam(1e200, 1.0, 1.0), "skellam.noise_multiplier: must be 0 or between 1e-10 and 1e10"),
        (lambda: Laplace(-0.1), "laplace.scale"),
        (lambda: Pure(0.0), r"pure.epsilon: must be above 0 and finite \(got 0.0\). Usual values"),
        (lambda: Approximate(1.0, 1.0), r"approximate.delta: must be above 0 and below 1 .* 1 / population"),
        (lambda: Approximate(1.0, 0.0), "approximate.delta"),
        (lambda: DistributedDiscreteGaussian(1.0, l2=0.0), "discrete_gaussian.l2: must be above 0"),
        (lambda: DistributedDiscreteGaussian(1.0, clients=0), "discrete_gaussian.clients: must be a whole number"),
        (lambda: DistributedSkellam(1.0, 1.0, -1.0), "skellam.l1"),
        (lambda: Banded(1.0, bands=5, min_separation=4, rounds=10), "Use bands at most 4, or a larger min_separation"),
        (lambda: Banded(1.0, 2, 4, 10, participations=4), r"leave a unit at most 3 turns \(got 4\)"),
        (lambda: TreeAggregation(1.0, rounds=0), "tree.rounds: must be a whole number, at least 1"),
        (lambda: TreeAggregation(1.0, 8, pattern="odd"), "tree.pattern: 'odd' is unknown"),  # type: ignore[arg-type]
        (
            lambda: Sampled(Gaussian(1.0), "poisson", 10, 11),
            "sampled.cohort: must be above 0 and at most the population",
        ),
        (lambda: Sampled(Gaussian(1.0), "poisson", 10, 0), r"sampled.cohort: .* \(got 0\)\. Use scheme = 'everyone'"),
        (lambda: Sampled(Gaussian(1.0), "without_replacement", 10, 2.5), "must be a whole number"),
        (lambda: Sampled(Gaussian(1.0), "lottery", 10, 1), "sampled.scheme: 'lottery' is unknown"),  # type: ignore[arg-type]
        (lambda: Composed(((Gaussian(1.0), -1),)), r"composed.parts\[0\]: the count"),
        (lambda: Rdp().epsilon(Gaussian(1.0), 1.0), "privacy.delta: must be above 0 and below 1"),
        (lambda: Rdp().delta(Gaussian(1.0), 0.0), "privacy.epsilon: must be above 0"),
    ],
)
def test_bad_input_gets_a_clear_message(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()


def rounds(event: Event, how: str, count: int = 12, **more: int) -> Composed:
    return Composed(((Sampled(event, how, 100, 10, **more), count),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("event", "terms", "adjacency"),
    [
        (rounds(Gaussian(2.0), "poisson"), (Term(Gaussian(2.0), 12, rate=0.1),), "add-or-remove"),
        (rounds(Laplace(2.0), "poisson"), (Term(Laplace(2.0), 12, rate=0.1),), "add-or-remove"),
        (
            rounds(Gaussian(2.0), "without_replacement"),
            (Term(Gaussian(1.0), 12, without_replacement=(10, 100)),),
            "replace-one",
        ),
        (rounds(Gaussian(2.0), "with_replacement"), (Term(Gaussian(2.0), 12, with_replacement=(10, 100)),), "zero-out"),
        (rounds(Gaussian(2.0), "cyclic", min_separation=5), (Term(Gaussian(2.0), 3),), "zero-out"),
        (rounds(Gaussian(2.0), "cyclic"), (Term(Gaussian(2.0), 12),), "zero-out"),
        (rounds(Gaussian(2.0), "everyone"), (Term(Gaussian(2.0), 12),), "zero-out"),
        (rounds(Laplace(2.0), "without_replacement"), (Term(Laplace(2.0), 12),), "zero-out"),
        (rounds(Pure(0.5), "poisson"), (Term(Pure(0.5), 12),), "zero-out"),
        (
            rounds(DistributedSkellam(1.0, 1.0, 1.0), "poisson"),
            (Term(DistributedSkellam(1.0, 1.0, 1.0), 12),),
            "zero-out",
        ),
        (rounds(Pure(0.5), "cyclic", min_separation=4), (Term(Pure(0.5), 3),), "zero-out"),
        (Banded(4.0, 2, 3, rounds=10), (Term(Gaussian(2.0), 1),), "zero-out"),
        (Gaussian(1.0), (Term(Gaussian(1.0), 1),), "add-or-remove"),
    ],
)
def test_only_amplification_that_holds_is_used(event: Event, terms: tuple[Term, ...], adjacency: str) -> None:
    assert (flatten(event).terms, flatten(event).adjacency, flatten(event).broken) == (terms, adjacency, None)


def test_gaussians_on_one_cohort_are_amplified_as_one() -> None:
    both = Composed(((Gaussian(3.0), 1), (Gaussian(4.0), 1)))
    (term,) = flatten(rounds(both, "poisson")).terms
    assert (term.count, term.rate, combined((term,))) == (12, 0.1, pytest.approx(2.4 / math.sqrt(12)))
    mixed = Composed(((Gaussian(3.0), 1), (Laplace(4.0), 1)))
    assert flatten(rounds(mixed, "poisson")).terms == (Term(Gaussian(3.0), 12), Term(Laplace(4.0), 12))


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (NotPrivate("the server sees updates"), "the server sees updates"),
        (Composed(((Gaussian(1.0), 5), (NotPrivate("debugging"), 1))), "debugging"),
        (Gaussian(0.0), "no noise is added"),
        (rounds(Gaussian(0.0), "poisson"), "no noise is added"),
        (Banded(0.0, 1, 1, 5), "no noise is added"),
        (rounds(Laplace(1.0), "with_replacement"), "a unit may come twice"),
        (
            rounds(Banded(1.0, 4, 4, 12), "poisson", 1),
            "needs 4 rounds between two turns of a unit; poisson sampling keeps 1",
        ),
        (rounds(Banded(1.0, 4, 4, 12), "cyclic", 1, min_separation=3), "cyclic sampling keeps 3"),
        (
            rounds(Banded(1.0, 4, 4, 12, 2), "cyclic", 1, min_separation=4),
            "counts 2 turns of a unit; cyclic sampling allows 3",
        ),
        (rounds(TreeAggregation(1.0, 12), "with_replacement", 1), "drawing with replacement does not keep it"),
        (
            rounds(TreeAggregation(1.0, 12, 4, pattern="cyclic"), "cyclic", 1, min_separation=5),
            "needs turns every 4 rounds",
        ),
        (
            Composed(
                ((Sampled(Gaussian(1.0), "poisson", 9, 3), 1), (Sampled(Gaussian(1.0), "without_replacement", 9, 3), 1))
            ),
            "no common adjacency",
        ),
    ],
)
def test_what_has_no_guarantee_has_an_infinite_epsilon_and_a_reason(event: Event, words: str) -> None:
    assert words in (flatten(event).broken or "")
    assert explain(event).startswith("not private: ")
    for accountant in ACCOUNTANTS.values():
        assert accountant.supports(event) is None
        assert (accountant.epsilon(event, 1e-5), accountant.delta(event, 3.0)) == (math.inf, 1.0)


def test_a_separation_that_the_sampler_keeps_is_accepted() -> None:
    event = rounds(Banded(1.0, 4, 4, 12), "cyclic", 1, min_separation=5)
    assert flatten(event) == flatten(Banded(1.0, 4, 4, 12))


def test_sampling_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="is sampled already"):
        flatten(Sampled(Sampled(Gaussian(1.0), "poisson", 10, 1), "poisson", 10, 1))


@pytest.mark.parametrize(
    ("accountant", "event", "words"),
    [
        (Pld(), rounds(Gaussian(1.0), "without_replacement"), "Use accountant = 'rdp', or sample by Poisson"),
        (Prv(), rounds(Gaussian(1.0), "without_replacement"), "Use accountant = 'rdp', or sample by Poisson"),
        (Prv(), rounds(Laplace(1.0), "poisson"), "Poisson-sampled Laplace. Use accountant = 'pld'"),
        (Rdp(), rounds(Laplace(1.0), "poisson"), "Poisson-sampled Laplace. Use accountant = 'pld'"),
        (
            Pld(),
            DistributedSkellam(1.0, 1.0, 1.0),
            "DistributedSkellam is bounded by its Rényi divergence. Use accountant = 'rdp'",
        ),
        (Prv(), DistributedDiscreteGaussian(1.0), "DistributedDiscreteGaussian is bounded by its Rényi divergence"),
        (Analytic(), rounds(Gaussian(1.0), "poisson"), "knows no amplification"),
        (Analytic(), Laplace(1.0), "Laplace is not Gaussian"),
    ],
)
def test_what_an_accountant_cannot_do_it_says_and_refuses(accountant: Pld, event: Event, words: str) -> None:
    assert words in (accountant.supports(event) or "")
    with pytest.raises(ConfigError, match=f"{accountant.name} cannot account this"):
        accountant.epsilon(event, 1e-5)


def test_the_words_name_the_adjacency_and_what_was_assumed() -> None:
    words = explain(rounds(Gaussian(1.0), "without_replacement"))
    for part in ("adjacency replace-one", "10 of 100 without replacement", "half its noise multiplier"):
        assert part in words
    assert "3 turns of a unit in 12 rounds, no amplification" in explain(
        rounds(Gaussian(1.0), "cyclic", min_separation=5)
    )
    assert "no amplification is known for Pure" in explain(rounds(Pure(1.0), "poisson"))


def test_nothing_done_costs_nothing() -> None:
    for accountant in ACCOUNTANTS.values():
        assert accountant.epsilon(Composed(((Gaussian(1.0), 0),)), 1e-5) == 0
