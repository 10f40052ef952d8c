"""What a run has spent so far: its rounds' events, one after the other.

>>> from atoll.privacy.events import Gaussian, Sampled
>>> book = Ledger(rounds=4, delta=1e-5)
>>> for _ in range(4):
...     book.add(Sampled(Gaussian(4.0), "everyone", population=100, cohort=100))
>>> book.count, round(book.epsilon(), 3)
(4, 1.993)
"""

from __future__ import annotations

import math
from dataclasses import replace

from atoll.privacy.accountant import Accountant
from atoll.privacy.analytic import Analytic, gaussian_epsilons
from atoll.privacy.composition import Term, Terms, combined, flatten
from atoll.privacy.events import Banded, Composed, Event, Gaussian, Sampled, TreeAggregation
from atoll.privacy.plan import accountant_for
from atoll.privacy.pld import Pld
from atoll.privacy.prv import Prv
from atoll.privacy.rdp import Rdp

# "auto" takes the first that supports the event.
ACCOUNTANTS: dict[str, Accountant] = {"analytic": Analytic(), "pld": Pld(), "prv": Prv(), "rdp": Rdp()}

COARSE = Pld(interval=1e-3, quick=True)  # much faster, and a little higher
_AHEAD = 1.1  # a bound for a tenth more rounds holds for those before them
_BLOCK = 64  # rounds whose bounds are computed at once
_MANY = 16  # different rounds: composing them all anew in every round would take longer than the round


class Ledger:
    """Events of rounds, equal ones counted. `epsilon` is the accountant's; `bound` is cheap, and never lower."""

    def __init__(self, rounds: int, delta: float, accountant: str = "auto") -> None:
        self.rounds, self.delta, self.name = rounds, delta, accountant
        self.parts: list[tuple[Event, int]] = []
        self._first, self._lines = 0, list[float]()  # bounds after so many rounds, and after those that follow
        self._floor = 0.0  # the line before the last change
        self._cleared: tuple[float, int] = (0.0, 0)  # a budget, and the rounds that it affords for certain

    @property
    def count(self) -> int:
        return sum(n for _, n in self.parts)

    def add(self, event: Event) -> None:
        if self.parts and (self.parts[-1][0] is event or self.parts[-1][0] == event):
            self.parts[-1] = (event, self.parts[-1][1] + 1)
        else:
            self._floor = self.bound()  # it may have looked ahead, to rounds that will not be: lines never go down
            self.parts.append((event, 1))
            self._lines, self._cleared = [], (0.0, 0)

    def event(self, more: int = 0) -> Event:
        """The composition of all rounds; with so many more like the last one."""
        if not self.parts:
            return Composed(())
        last, n = self.parts[-1]
        return Composed(tuple(_whole(e, k) for e, k in (*self.parts[:-1], (last, n + more))))

    def terms(self) -> Terms:
        """What was assumed, for which neighbours, or why there is no guarantee."""
        return flatten(self.event())

    def accountant(self, more: int = 0) -> Accountant:
        """The one asked for, or the tightest that knows these events; with so many more rounds like the last one."""
        return accountant_for(self.event(more), ACCOUNTANTS, self.name)

    def epsilon(self, more: int = 0) -> float:
        """By the accountant; infinite where there is no guarantee."""
        return self.accountant(more).epsilon(self.event(more), self.delta)

    def bound(self) -> float:
        """At least `epsilon()`, but for the last digits, and fast enough for every round: looks some rounds ahead."""
        now = self.count
        if not self._lines or not self._first <= now < self._first + len(self._lines):
            self._first, self._lines = now, self._bounds(now)
        return max(self._floor, self._lines[now - self._first])

    def affords(self, event: Event, budget: float) -> bool:
        """Would a round with this event stay within the budget? Looks ahead to the last that does, and remembers."""
        now, same = self.count, bool(self.parts) and self.parts[-1][0] == event
        if same and self._cleared[0] == budget and now < self._cleared[1]:
            return True
        trial = Ledger(self.rounds, self.delta, self.name)
        trial.parts = [*self.parts[:-1], (event, self.parts[-1][1] + 1)] if same else [*self.parts, (event, 1)]
        low, high = -1, max(0, self.rounds - now - 1) + 1 if same else 1
        more = high - 1
        while high - low > 1:  # all that are left, then one, then halves between
            low, high = (more, high) if trial.epsilon(more) <= budget else (low, more)
            more = 0 if low < 0 else (low + high) // 2
        if same:
            self._cleared = budget, now + 1 + low
        return low >= 0

    def _bounds(self, now: int) -> list[float]:
        """Of this round and of some after it, if they are like it."""
        event = self.event()
        account = flatten(event)
        if account.broken:
            return [math.inf] * _BLOCK  # more rounds of it mend nothing
        if _plain(account):
            ahead = min(_BLOCK, self.parts[-1][1], max(1, self.rounds - now + 1))
            return gaussian_epsilons(self._noises(ahead), self.delta, tolerance=1e-6)
        if ACCOUNTANTS["analytic"].supports(event) is None:
            return [ACCOUNTANTS["analytic"].epsilon(event, self.delta)]
        rdp = ACCOUNTANTS["rdp"]
        loose = rdp.supports(event) is None
        if COARSE.supports(event) is None and not (loose and (self.name == "rdp" or len(self.parts) > _MANY)):
            then = min(_edge(now), max(now, self.rounds))
            tight = COARSE.epsilon(self.event(then - now), self.delta)
            if tight < math.inf or not loose:
                return [tight] * (then - now + 1)
        return [rdp.epsilon(event, self.delta)]

    def _noises(self, ahead: int) -> list[float]:
        """One Gaussian for all rounds so far, and one for every round after them."""
        last = self.parts[-1][0]
        if not (isinstance(last, Sampled) and last.scheme == "everyone") or _whole(last, 2)[1] != 2:
            return [combined(flatten(self.event(more)).terms) for more in range(ahead)]
        spent, per_round = (combined(flatten(e).terms) ** -2 for e in (self.event(), last))
        return [1 / math.sqrt(spent + more * per_round) for more in range(ahead)]


def _plain(account: Terms) -> bool:
    """Is all of it Gaussian without amplification?"""
    terms = account.terms
    return bool(terms) and all(isinstance(t.event, Gaussian) and t == Term(t.event, t.count) for t in terms)


def _edge(now: int) -> int:
    """The next round that is accounted for those before it: the same one, whenever it is asked for."""
    edge = 1
    while edge < now:
        edge = math.ceil((edge + 1) * _AHEAD)
    return edge


def _whole(event: Event, count: int) -> tuple[Event, int]:
    """So many rounds of it: noise for a whole run has been spent for these rounds only."""
    inner = event.event if isinstance(event, Sampled) else event
    if not isinstance(inner, Banded | TreeAggregation):
        return event, count
    first = replace(inner, rounds=count, participations=None)
    return (replace(event, event=first) if isinstance(event, Sampled) else first), 1
