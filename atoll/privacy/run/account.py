"""A run's account: what its rounds spent, said in every line of the record and in run.json."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from atoll import rng
from atoll.core import Chain, Outcome, Participation, Spec
from atoll.core.transform import named
from atoll.privacy import (
    Approximate,
    DistributedDiscreteGaussian,
    DistributedSkellam,
    Event,
    Ledger,
    NotPrivate,
    Pure,
    signal_to_noise,
)
from atoll.privacy.run.dpsgd import QUICK
from atoll.privacy.run.request import Asked, described, sampled, standing_for
from atoll.records.upgrade import upgraded_participation
from atoll.tree import Tree

if TYPE_CHECKING:
    from atoll.experiment.setup import Setup

Told = dict[str, Any]
# each client adds noise of its own, or a share of the noise
_BY_CLIENTS = (DistributedDiscreteGaussian, DistributedSkellam, Pure, Approximate)
_NOTHING = Asked(delta=0.5)  # of a run that has no mechanism on updates: nothing is ever written in that book


class Account:
    """What one run spent: on clients, as it was made; as the larger system that it may stand for; on examples."""

    key = "privacy"

    def __init__(self, setup: Setup, chain_of: Callable[[int], tuple[Chain, Spec]]) -> None:
        self.chain_of, layers = chain_of, chain_of(0)[0]
        self.cohort_key = rng.key(setup.experiment.seed, "cohort")
        self.sampler, self.canaries, self.examples = setup.sampler, setup.canaries, setup.example_privacy
        self.mechanism, self.how, self.rounds = mechanism(layers), setup.how, setup.experiment.rounds
        self.known = setup.asked or _NOTHING
        self.noisy = setup.asked is not None  # is there a mechanism on the updates?
        self.own = self._book()
        self.larger = self._book() if described(layers, self.known) else None
        self.count = 0  # rounds
        self.public = setup.rules.public if setup.rules else ()
        self.broken: str | None = None  # why nothing holds any more, whatever the events say
        self.cut_short = False  # did the run end by what it had measured?

    @classmethod
    def of(cls, setup: Setup, chain_of: Callable[[int], tuple[Chain, Spec]]) -> Account | None:
        """None for a run without a mechanism, on updates or on examples. `chain_of` gives a round's transforms."""
        if setup.asked is None and setup.example_privacy is None:
            return None
        return cls(setup, chain_of)

    def hear(self, number: int, outcome: Outcome, left_out: int) -> Told:
        """A round was made: what it spent, and what its line says of that."""
        layers, spec = self.chain_of(number)
        self.add(layers, outcome.participation, left_out)
        signal = outcome.diagnostics.get("signal")
        return self.line(spec, layers, None if signal is None else float(signal), len(outcome.ids) - left_out)

    def ended_by(self, what: Literal["a metric", "a client"]) -> None:
        """Why the run ends early says something, too.

        One that stops because of a client's update says something of that client past the noise. One that stops by its
        own outputs says something of them: all rounds count that it might have made.
        """
        if what == "a client":
            self.broken = "the run ended because a client's update was not finite, which the noise does not cover"
        else:
            self.cut_short = True

    def objects(self, number: int) -> str | None:
        """Would this round cost more than the budget?"""
        if self.known.budget is None:
            return None
        return self.affords(
            self.chain_of(number)[0], self.sampler.sample(self.how.population, number, self.cohort_key)[1]
        )

    def add(self, layers: Chain, how: Participation, left_out: int = 0) -> None:
        """A round that was made with these layers, on a cohort drawn so."""
        self.count += 1
        if not self.noisy:
            return
        self.own.add(event_of(layers, how, left_out))
        if self.larger is not None:
            self.larger.add(standing_for(layers, layers.simulated_events(), how, self.known))

    def replay(self, history: Iterable[Mapping[str, Any]]) -> None:
        """What a resumed run had spent, from its record: who was drawn how, and who was left out."""
        for number, entry in enumerate(history):
            how = Participation(**upgraded_participation(entry["cohort"]["how"]))
            self.add(self.chain_of(number)[0], how, len(entry.get("dropped", ())))

    def affords(self, layers: Chain, how: Participation) -> str | None:
        """Why the next round must not be made; None if it may."""
        budget = self.known.budget
        if budget is None:
            return None
        book, event = self.own, event_of(layers, how, 0)
        if self.larger is not None:
            book, event = self.larger, standing_for(layers, layers.simulated_events(), how, self.known)
        if book.affords(event, budget):
            return None
        return f"one more round would cost more than the privacy budget, epsilon {budget:g} at delta {book.delta:g}"

    def line(self, spec: Spec, layers: Chain, signal: float | None, clients: int) -> Told:
        """What a line of the record says of privacy."""
        found: Told = {}
        if self.noisy and math.isfinite(own := self.own.bound()):
            found["epsilon"] = _up(own)
        spent = None if self.examples is None else self.examples.epsilon_after(self.count)
        if spent is not None and math.isfinite(spent):
            found["example_epsilon"] = _up(spent)
        if self.larger is not None and math.isfinite(imagined := self.larger.bound()):
            found["simulated_epsilon"] = _up(imagined)
        if signal is not None and spec.noise and spec.size:
            std = spec.noise * _share(layers, clients)
            if std > 0:
                found["snr"] = float(f"{signal_to_noise(signal, spec.size, std):.4g}")
        return found

    def summary(self, state: Tree, quick: bool = False) -> Told:
        """The block of run.json: of the rounds made so far. `quick`: with the bounds that lines of the record have."""
        found = {"client": self._block(self.own, quick)} if self.noisy else {}
        if self.examples is not None:
            found["example"] = self._example_block(quick)
        if self.larger is not None:
            block = self._block(self.larger, quick)
            block["sampler"] = f"{_drawn(self.larger)}, imagined"
            found["simulates"] = {"label": "simulation only", **block}
        if self.canaries is not None and self.own.count and not quick:
            found["audit"] = self.canaries.verdict(state["chain"], self.own.delta)
        return found

    def forecast(self) -> list[str]:
        """What the whole run would cost, in words, if it goes on as it begins."""
        found, layers = [], self.chain_of(0)[0]
        if self.noisy:
            own = self._book()
            own.parts = [(event_of(layers, self.how, 0), self.rounds)]
            found.append(_words(self._block(own)) + self._ended_by_budget(own))
        if self.larger is not None:
            there = self._book()
            there.parts = [(standing_for(layers, layers.simulated_events(), self.how, self.known), self.rounds)]
            found.append(f"stands for {_words(self._block(there))}, simulation only{self._ended_by_budget(there)}")
        if self.examples is not None:
            found.append(_words(self.examples.block(self.rounds)))
        return found

    def _ended_by_budget(self, book: Ledger) -> str:
        """In words, after how many rounds like the first the budget ends the run."""
        budget, (event, rounds) = self.known.budget, book.parts[0]
        if budget is None or book.terms().broken or book.epsilon() <= budget:
            return ""
        book.parts = [(event, 1)]
        made = bisect_right(range(rounds), budget, key=book.epsilon)
        return f"; the budget, epsilon {budget:g}, ends it after {made} of {rounds} rounds"

    def _book(self) -> Ledger:
        return Ledger(self.rounds, self.known.delta, self.known.accountant)

    def _block(self, book: Ledger, quick: bool = False) -> Told:
        terms = book.terms()
        facts: Told = {"unit": "client", "mechanism": self.mechanism, "rounds": book.count}
        if self.known.calibrated is not None:
            facts["calibrated"] = dict(zip(("epsilon", "delta"), self.known.calibrated, strict=True))
        if broken := self.broken or terms.broken:
            return {"holds": False, "why": broken, **facts}
        more = self._never_made(book.count)
        spent = _up(book.bound()) if quick else book.epsilon(more)
        if more and self.known.budget is not None:
            spent = min(spent, self.known.budget)  # it would have ended before that
        if not math.isfinite(spent) and quick:
            return {"holds": False, "why": "the account is made up when the run ends", **facts}
        if not math.isfinite(spent):
            return {"holds": False, "why": f"there is no guarantee at delta {book.delta:g}", **facts}
        return {
            "holds": True,
            "epsilon": spent,
            "delta": book.delta,
            **facts,
            "adjacency": terms.adjacency,
            "sampler": sampler(self.how),
            "accountant": QUICK if quick else book.accountant(more).name,
            "assumed": [*terms.notes, *self.public, *self._counted(more)],
            **({} if self.known.budget is None else {"budget": self.known.budget}),
        }

    def _example_block(self, quick: bool) -> Told:
        assert self.examples is not None
        more = self._never_made(self.count)
        block = self.examples.block(self.count + more, quick)
        notes = [*block["assumed"], *self.public, *self._counted(more)]
        return {**block, "rounds": self.count, "assumed": notes}

    def _never_made(self, made: int) -> int:
        """Rounds that count although the run ended before them."""
        return self.rounds - made if self.cut_short else 0

    def _counted(self, more: int) -> list[str]:
        return [f"the run ended by what it had measured, so that all {self.rounds} rounds count"] if more else []


def event_of(layers: Chain, how: Participation, left_out: int) -> Event:
    """The event of one round. Noise that clients add themselves is not there where some of them were left out."""
    events = layers.events()
    if left_out and any(isinstance(e, _BY_CLIENTS) for e in events):
        return NotPrivate(
            f"updates that were not finite ({left_out}) were left out, and their clients' noise with them"
        )
    return sampled(events, how)


def mechanism(layers: Chain) -> str:
    """The mechanisms in words.

    >>> from atoll.transforms import GaussianNoise
    >>> mechanism(Chain((GaussianNoise(1.2),)))
    'gaussian_noise, noise multiplier 1.2'
    """
    found = []
    for layer in layers.transforms:
        if layer.event() is None:
            continue
        number = getattr(layer, "noise_multiplier", None)
        found.append(named(layer) + ("" if number is None else f", noise multiplier {float(number):.6g}"))
    return "; ".join(found)


def sampler(how: Participation) -> str:
    """How cohorts are drawn, in words.

    >>> sampler(Participation("poisson", 100, probability=0.1))
    'poisson, 10 of 100 clients on average'
    """
    name = how.scheme.replace("_", " ")
    number = "" if how.expected is None else f" {how.expected:g}"
    drawn = f"{name},{number} of {how.population} clients" + (" on average" if how.probability is not None else "")
    return drawn + (f", {how.min_separation} rounds from turn to turn" if how.min_separation else "")


def _words(block: Told) -> str:
    if not block["holds"]:
        return f"not private: {block['why']}"
    return (
        f"epsilon {_up(block['epsilon']):g} at delta {block['delta']:g} after all rounds "
        f"({block['unit']} level, {block['adjacency']}, {block['accountant']}); {block['mechanism']}"
    )


def _drawn(book: Ledger) -> str:
    event: Any = book.parts[-1][0] if book.parts else None
    if event is None:
        return "not drawn yet"
    return f"{event.scheme.replace('_', ' ')}, {event.cohort:g} of {event.population} clients"


def _share(layers: Chain, clients: int) -> float:
    """What is left of the noise where it is that of a larger cohort."""
    larger = next((c for x in layers.transforms if (c := getattr(x, "noise_cohort", None)) is not None), None)
    return 1.0 if larger is None else clients / larger


def _up(epsilon: float) -> float:
    """Five digits, never below."""
    if not 0 < epsilon < math.inf:
        return max(0.0, epsilon)
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 4)
    return float(f"{math.ceil(epsilon / step - 1e-9) * step:.6g}")
