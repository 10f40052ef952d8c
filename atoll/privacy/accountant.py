"""What every accountant does: say whether it can account an event, and give epsilon for delta or delta for epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from atoll.errors import ConfigError
from atoll.privacy.events import Event, Gaussian, check_delta, check_epsilon
from atoll.privacy.replacement import squares
from atoll.privacy.terms import Term, Terms, flatten

Parts = tuple[Term, ...]
MOST = 500.0  # the epsilon of one round that can be worked with: e to the power of more is no number


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
    return (replace(term, event=Gaussian(term.event.multiplier / math.sqrt(worst)), count=1, repeated=None),)


def _spent(terms: Parts, at: float, solve: Callable[[Parts, float], float]) -> float:
    return float(solve(terms, at)) if terms else 0.0
