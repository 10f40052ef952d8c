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
from atoll.privacy.analytic import Analytic, gaussian_epsilon
from atoll.privacy.events import Banded, Composed, Event, Gaussian, Sampled, Tree
from atoll.privacy.plan import suited
from atoll.privacy.pld import Pld
from atoll.privacy.prv import Prv
from atoll.privacy.rdp import Rdp
from atoll.privacy.terms import Term, Terms, combined, flatten

# "auto" takes the first that supports the event.
ACCOUNTANTS: dict[str, Accountant] = {"analytic": Analytic(), "pld": Pld(), "prv": Prv(), "rdp": Rdp()}

COARSE = Pld(interval=1e-3)  # ten times as fast, and a little higher
_AHEAD = 1.1  # a bound for a tenth more rounds holds for those before them
_MANY = 16  # different rounds: composing them all anew in every round would take longer than the round


class Ledger:
    """Events of rounds, equal ones counted. `epsilon` is the accountant's; `bound` is cheap, and never lower."""

    def __init__(self, rounds: int, delta: float, accountant: str = "auto") -> None:
        self.rounds, self.delta, self.name = rounds, delta, accountant
        self.parts: list[tuple[Event, int]] = []
        self._ahead: tuple[int, float] | None = None  # so many rounds cost at most so much
        self._cleared: tuple[float, int] = (0.0, 0)  # a budget, and the rounds that it affords for certain

    @property
    def count(self) -> int:
        """Rounds so far."""
        return sum(n for _, n in self.parts)

    def add(self, event: Event) -> None:
        """One more round."""
        if self.parts and self.parts[-1][0] == event:
            self.parts[-1] = (event, self.parts[-1][1] + 1)
        else:
            self.parts.append((event, 1))
            self._ahead, self._cleared = None, (0.0, 0)

    def event(self, more: int = 0) -> Event:
        """All of it; with so many more rounds like the last one."""
        if not self.parts:
            return Composed(())
        last, n = self.parts[-1]
        return Composed(tuple(_whole(e, k) for e, k in (*self.parts[:-1], (last, n + more))))

    def terms(self) -> Terms:
        """What was assumed, for which neighbours, or why there is no guarantee."""
        return flatten(self.event())

    def accountant(self) -> Accountant:
        """The one asked for, or the tightest that knows these events."""
        return suited(self.event(), ACCOUNTANTS, self.name)

    def epsilon(self, more: int = 0) -> float:
        """By the accountant; infinite where there is no guarantee."""
        event = self.event(more)
        return suited(event, ACCOUNTANTS, self.name).epsilon(event, self.delta)

    def bound(self) -> float:
        """At least `epsilon()`, but for the last digits, and fast enough for every round."""
        event = self.event()
        account = flatten(event)
        if account.broken:
            return math.inf
        plain = [t for t in account.terms if isinstance(t.event, Gaussian) and t == Term(t.event, t.count)]
        if plain and len(plain) == len(account.terms):
            return gaussian_epsilon(combined(account.terms), self.delta, tolerance=1e-6)
        if ACCOUNTANTS["analytic"].supports(event) is None:
            return ACCOUNTANTS["analytic"].epsilon(event, self.delta)
        rdp = ACCOUNTANTS["rdp"]
        cheap = rdp.epsilon(event, self.delta) if rdp.supports(event) is None else math.inf
        if self.name == "rdp" or COARSE.supports(event) is not None or (len(self.parts) > _MANY and cheap < math.inf):
            return cheap
        return min(cheap, self._tight())

    def affords(self, event: Event, budget: float) -> bool:
        """Would a round with this event stay within the budget? Looks some rounds ahead, and remembers."""
        now, same = self.count, bool(self.parts) and self.parts[-1][0] == event
        if same and self._cleared[0] == budget and now < self._cleared[1]:
            return True
        trial = Ledger(self.rounds, self.delta, self.name)
        trial.parts = list(self.parts)
        trial.add(event)
        ahead = max(0, min(self.rounds - now - 1, now // 8))
        for more in (ahead, 0):
            if trial.epsilon(more) <= budget:
                if same:
                    self._cleared = budget, now + 1 + more
                return True
        return False

    def _tight(self) -> float:
        """A loss distribution's bound, computed for a few rounds ahead and kept until then."""
        now = self.count
        if self._ahead is None or self._ahead[0] < now:
            then = max(now, min(self.rounds, math.ceil(now * _AHEAD)))
            self._ahead = then, COARSE.epsilon(self.event(then - now), self.delta)
        return self._ahead[1]


def _whole(event: Event, count: int) -> tuple[Event, int]:
    """So many rounds of it: noise for a whole run has been spent for these rounds only."""
    inner = event.event if isinstance(event, Sampled) else event
    if not isinstance(inner, Banded | Tree):
        return event, count
    first = replace(inner, rounds=count, participations=None)
    return (replace(event, event=first) if isinstance(event, Sampled) else first), 1
