"""What every accountant does: say whether it can account an event, and give epsilon for delta or delta for epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from atoll.errors import ConfigError
from atoll.privacy.composition import Term, Terms, flatten
from atoll.privacy.events import MOST as MOST_NOISE
from atoll.privacy.events import Approximate, Event, Gaussian, Laplace, Pure, check_delta, check_epsilon
from atoll.privacy.with_replacement import squares

Parts = tuple[Term, ...]
MOST = 500.0  # the epsilon of one round that can be worked with: e to the power of more is no number
MOST_ROUNDS = 1_000_000  # composed on a grid of losses: with more it is slow, and what is rounded up is more than rdp's
MOST_LOSS = 1e9  # that such a grid reaches


class Accountant(Protocol):
    """What every entry of ACCOUNTANTS is: events in, guarantees out. Both answers are upper bounds."""

    @property
    def name(self) -> str:
        """What the file and the command call it."""
        ...

    def supports(self, event: Event) -> str | None:
        """None if it can account the event; else the reason why not, and what can."""
        ...

    def epsilon(self, event: Event, delta: float) -> float:
        """The smallest epsilon that it can promise at this delta; infinite where there is no guarantee."""
        ...

    def delta(self, event: Event, epsilon: float) -> float:
        """The smallest delta that it can promise at this epsilon; 1 where there is no guarantee."""
        ...


def reach(term: Term) -> float:
    """About the largest loss of a term that matters."""
    event = term.event
    if isinstance(event, Gaussian):
        cost = 1 / event.noise_multiplier * (math.sqrt(term.count) if term.rate is None else 1.0)
        turns = 0.0 if term.rate is None else term.count * term.rate
        return (cost**2 / 2 + 10 * cost) * (1 + turns + 6 * math.sqrt(turns))
    if isinstance(event, Laplace):
        return term.count / event.scale
    assert isinstance(event, Pure | Approximate)
    return term.count * event.epsilon


def outgrown(term: Term) -> str | None:
    """Why losses on a grid are no way to account this term; None where they are."""
    instead = (
        "Use accountant = 'rdp'."
        if term.rate is None or isinstance(term.event, Gaussian)
        else "Use fewer rounds or more noise."
    )
    if not isinstance(term.event, Gaussian) and (once := reach(replace(term, count=1))) > MOST:
        return f"an epsilon of {once:.4g} in one round is too large. {instead}"
    joined = isinstance(term.event, Gaussian) and term.rate is None  # many are one: 1/z² adds up
    if term.count > MOST_ROUNDS and not joined:
        return f"{term.count:,} rounds are more than it can compose (at most {MOST_ROUNDS:,}). {instead}"
    if reach(term) > MOST_LOSS:
        return f"losses of up to {reach(term):.2g} are too large for its grid. {instead}"
    return None


def checked(accountant: Accountant, event: Event) -> Terms:
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
    if not any(term.repeated for term in account.terms):
        return _spent(account.terms, delta, solve)
    shares = (0.5 * delta, 0.1 * delta, 0.01 * delta)
    return min(_spent(settled(account.terms, slack), delta - slack, solve) for slack in shares)


def delta_of(account: Terms, epsilon: float, solve: Callable[[Parts, float], float]) -> float:
    """`solve(terms, epsilon)`, and the chance that a unit was drawn more often than counted."""
    check_epsilon("privacy.epsilon", epsilon)
    if account.broken:
        return 1.0
    if not any(term.repeated for term in account.terms):
        return min(1.0, _spent(account.terms, epsilon, solve))
    slacks: Iterable[float] = (10.0**-i for i in range(1, 15))
    return min(1.0, *(slack + _spent(settled(account.terms, slack), epsilon, solve) for slack in slacks))


def settled(terms: Parts, slack: float) -> Parts:
    """Terms drawn with replacement as one Gaussian each, right but for a probability of `slack` in all."""
    share = slack / max(1, sum(term.repeated is not None for term in terms))
    return tuple(t for term in terms for t in _settle(term, share))


def _settle(term: Term, slack: float) -> Parts:
    if term.repeated is None or not isinstance(term.event, Gaussian):
        return (term,)
    worst = squares(*term.repeated, term.count, slack)
    if worst == 0:
        return ()
    noise = min(MOST_NOISE, term.event.noise_multiplier / math.sqrt(worst))
    return (replace(term, event=Gaussian(noise), count=1, repeated=None),)


def _spent(terms: Parts, at: float, solve: Callable[[Parts, float], float]) -> float:
    return float(solve(terms, at)) if terms else 0.0
