"""What every accountant does: say whether it can account an event, and give epsilon for delta or delta for epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from atoll.errors import ConfigError
from atoll.privacy.composition import Term, Terms, flatten
from atoll.privacy.events import MAX_NOISE, Approximate, Event, Gaussian, Laplace, Pure, check_delta, check_epsilon
from atoll.privacy.with_replacement import multiplicity_bound

Parts = tuple[Term, ...]
MAX_ROUND_EPSILON = 500.0  # the epsilon of one round that can be worked with: e to the power of more is no number
MAX_ROUNDS = 1_000_000  # composed on a grid of losses: with more it is slow, and what is rounded up is more than rdp's
MAX_LOSS = 1e9  # that such a grid reaches


class Accountant(Protocol):
    """What every entry of ACCOUNTANTS is: events in, guarantees out. Both answers are upper bounds."""

    @property
    def name(self) -> str: ...

    def supports(self, event: Event) -> str | None:
        """None if it can account the event; else the reason why not, and what can."""
        ...

    def epsilon(self, event: Event, delta: float) -> float:
        """The smallest epsilon that it can promise at this delta; infinite where there is no guarantee."""
        ...

    def delta(self, event: Event, epsilon: float) -> float:
        """The smallest delta that it can promise at this epsilon; 1 where there is no guarantee."""
        ...


def max_loss(term: Term) -> float:
    """About the largest privacy loss of a term that matters."""
    event = term.event
    if isinstance(event, Gaussian):
        cost = 1 / event.noise_multiplier * (math.sqrt(term.count) if term.rate is None else 1.0)
        participations = 0.0 if term.rate is None else term.count * term.rate
        return (cost**2 / 2 + 10 * cost) * (1 + participations + 6 * math.sqrt(participations))
    if isinstance(event, Laplace):
        return term.count / event.scale
    assert isinstance(event, Pure | Approximate)
    return term.count * event.epsilon


def why_not_on_grid(term: Term) -> str | None:
    """Why a grid of privacy losses cannot account this term; None where it can."""
    if term.without_replacement is not None:
        return "it has no bound for sampling without replacement. Use accountant = 'rdp', or sample by Poisson."
    if not isinstance(term.event, Gaussian | Laplace | Pure | Approximate):
        return f"{type(term.event).__name__} is bounded by its Rényi divergence. Use accountant = 'rdp'."
    instead = (
        "Use accountant = 'rdp'."
        if term.rate is None or isinstance(term.event, Gaussian)
        else "Use fewer rounds or more noise."
    )
    if not isinstance(term.event, Gaussian) and (once := max_loss(replace(term, count=1))) > MAX_ROUND_EPSILON:
        return f"an epsilon of {once:.4g} in one round is too large. {instead}"
    joined = isinstance(term.event, Gaussian) and term.rate is None  # many are one: 1/z² adds up
    if term.count > MAX_ROUNDS and not joined:
        return f"{term.count:,} rounds are more than it can compose (at most {MAX_ROUNDS:,}). {instead}"
    if max_loss(term) > MAX_LOSS:
        return f"losses of up to {max_loss(term):.2g} are too large for its grid. {instead}"
    return None


def supported_terms(accountant: Accountant, event: Event) -> Terms:
    """The terms of an event that the accountant supports; a ConfigError for one that it does not."""
    why = accountant.supports(event)
    if why:
        raise ConfigError(f"privacy.accountant: {accountant.name} cannot account this: {why}")
    return flatten(event)


def epsilon_of(account: Terms, delta: float, solve: Callable[[Parts, float], float]) -> float:
    """`solve(terms, delta)`, with a part of delta set aside where cohorts were drawn with replacement."""
    check_delta("privacy.delta", delta)
    if account.broken:
        return math.inf
    if not any(term.with_replacement for term in account.terms):
        return _solved(account.terms, delta, solve)
    slacks = (0.5 * delta, 0.1 * delta, 0.01 * delta)
    return min(_solved(condition_on_multiplicity(account.terms, slack), delta - slack, solve) for slack in slacks)


def delta_of(account: Terms, epsilon: float, solve: Callable[[Parts, float], float]) -> float:
    """`solve(terms, epsilon)`, and the chance that a unit was drawn more often than counted."""
    check_epsilon("privacy.epsilon", epsilon)
    if account.broken:
        return 1.0
    if not any(term.with_replacement for term in account.terms):
        return min(1.0, _solved(account.terms, epsilon, solve))
    slacks: Iterable[float] = (10.0**-i for i in range(1, 15))
    return min(
        1.0, *(slack + _solved(condition_on_multiplicity(account.terms, slack), epsilon, solve) for slack in slacks)
    )


def condition_on_multiplicity(terms: Parts, delta_slack: float) -> Parts:
    """Terms drawn with replacement as one Gaussian each, given how often a unit is drawn.

    Right but for a probability of `delta_slack` in all, which the caller takes from delta.
    """
    share = delta_slack / max(1, sum(term.with_replacement is not None for term in terms))
    return tuple(t for term in terms for t in _condition_term(term, share))


def _condition_term(term: Term, delta_slack: float) -> Parts:
    if term.with_replacement is None or not isinstance(term.event, Gaussian):
        return (term,)
    sum_of_squares = multiplicity_bound(*term.with_replacement, term.count, delta_slack)
    if sum_of_squares == 0:
        return ()
    noise = min(MAX_NOISE, term.event.noise_multiplier / math.sqrt(sum_of_squares))
    return (replace(term, event=Gaussian(noise), count=1, with_replacement=None),)


def _solved(terms: Parts, at: float, solve: Callable[[Parts, float], float]) -> float:
    return float(solve(terms, at)) if terms else 0.0
