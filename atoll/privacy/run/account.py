"""A run's account: what its rounds spent, said in every line of the record and in run.json."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from atoll import rng
from atoll.core import Chain, Outcome, Participation, Spec
from atoll.privacy import Event, Ledger, signal_to_noise
from atoll.privacy.run.descriptions import (
    QUICK_BOUND,
    PrivacyBlock,
    describe_guarantee,
    describe_mechanism,
    describe_sampler,
    describe_simulated_sampler,
    round_up,
)
from atoll.privacy.run.policy import RunPrivacy
from atoll.privacy.run.request import PrivacyRequest
from atoll.privacy.run.round_events import (
    gains_by_shuffling,
    round_event,
    simulated_round_event,
    states_simulated_system,
)
from atoll.privacy.run.run_setup import RunSetup
from atoll.tree import Tree

# of a run that has no mechanism on updates: nothing is ever written in that ledger
_NO_REQUEST = PrivacyRequest(delta=0.5)


class Account:
    """What one run spent: on clients, as it was made; as the larger system that it may stand for; on examples."""

    key = "privacy"
    diagnostics = frozenset(["signal"])  # told as a ratio to the noise: what is exact is not for a private run's record

    def __init__(self, setup: RunSetup, privacy: RunPrivacy, chain_of: Callable[[int], tuple[Chain, Spec]]) -> None:
        self.chain_of, chain = chain_of, chain_of(0)[0]
        self.cohort_key = rng.key(setup.experiment.seed, "cohort")
        self.sampler, self.canaries, self.examples = setup.sampler, privacy.canaries, setup.example_privacy
        self.participation, self.rounds = setup.participation, setup.experiment.rounds
        self.mechanism = describe_mechanism(chain)
        self.request = privacy.request or _NO_REQUEST
        self.has_mechanism = privacy.request is not None  # on the updates
        self.ledger = self._new_ledger()
        self.simulated_ledger = self._new_ledger() if states_simulated_system(chain, self.request) else None
        self._last: tuple[Chain, Participation, int, Event, Event | None] | None = None
        self.count = 0  # rounds
        self.assumed = privacy.assumed
        self.broken: str | None = None  # why nothing holds any more, whatever the events say
        self.cut_short = False  # did the run end by what it had measured?

    @classmethod
    def of(cls, setup: RunSetup, privacy: RunPrivacy, chain_of: Callable[[int], tuple[Chain, Spec]]) -> Account | None:
        """None for a run without a mechanism, on updates or on examples. `chain_of` gives a round's transforms."""
        if privacy.request is None and setup.example_privacy is None:
            return None
        return cls(setup, privacy, chain_of)

    def hear(self, number: int, outcome: Outcome, left_out: int) -> PrivacyBlock:
        """A round was made: what it spent, and what its line says of that."""
        chain, spec = self.chain_of(number)
        self.add(chain, outcome.participation, left_out)
        signal = outcome.diagnostics.get("signal")
        return self.line(spec, chain, None if signal is None else float(signal), len(outcome.ids) - left_out)

    def ended_by(self, what: Literal["a metric", "a client", "a bound"]) -> None:
        """Why the run ends early says something, too.

        One that stops because of a client's update says something of that client past the noise. One that stops by its
        own outputs says something of them: all rounds count that it might have made.
        """
        if what == "a bound":
            self.broken = "a client's update was longer than what the noise was measured for"
        elif what == "a client":
            self.broken = "the run ended because a client's update was not finite, which the noise does not cover"
        else:
            self.cut_short = True

    def objects(self, number: int) -> str | None:
        """Would this round cost more than the budget?"""
        if self.request.budget is None:
            return None
        return self.affords(
            self.chain_of(number)[0], self.sampler.sample(self.participation.population, number, self.cohort_key)[1]
        )

    def add(self, chain: Chain, participation: Participation, left_out: int = 0) -> None:
        """A round that was made with this chain, on a cohort drawn so."""
        self.count += 1
        if not self.has_mechanism:
            return
        event, simulated = self._events(chain, participation, left_out)
        self.ledger.add(event)
        if self.simulated_ledger is not None and simulated is not None:
            self.simulated_ledger.add(simulated)

    def _events(self, chain: Chain, participation: Participation, left_out: int) -> tuple[Event, Event | None]:
        """Of a round, and of its like in the larger system; those of the last round, where nothing is different."""
        last = self._last
        if last is None or last[0] is not chain or last[1:3] != (participation, left_out):
            simulates = self.simulated_ledger is not None
            simulated = simulated_round_event(chain, participation, self.request) if simulates else None
            event = round_event(chain, participation, left_out, self.request.crowd)
            last = self._last = chain, participation, left_out, event, simulated
        return last[3:]

    def replay(self, history: Iterable[Mapping[str, Any]]) -> None:
        """What a resumed run had spent, from its record: who was drawn how, and who was left out."""
        for number, entry in enumerate(history):
            participation = Participation(**entry["cohort"]["how"])
            self.add(self.chain_of(number)[0], participation, len(entry.get("dropped", ())))

    def affords(self, chain: Chain, participation: Participation) -> str | None:
        """Why the next round must not be made; None if it may."""
        budget = self.request.budget
        if budget is None:
            return None
        ledger, event = self.ledger, round_event(chain, participation, 0, self.request.crowd)
        if self.simulated_ledger is not None:
            ledger, event = self.simulated_ledger, simulated_round_event(chain, participation, self.request)
        if ledger.affords(event, budget):
            return None
        return f"one more round would cost more than the privacy budget, epsilon {budget:g} at delta {ledger.delta:g}"

    def line(self, spec: Spec, chain: Chain, signal: float | None, clients: int) -> PrivacyBlock:
        """What a line of the record says of privacy."""
        line: PrivacyBlock = {}
        if self.has_mechanism and math.isfinite(spent := self.ledger.bound()):
            line["epsilon"] = round_up(spent)
        on_examples = None if self.examples is None else self.examples.epsilon_after(self.count)
        if on_examples is not None and math.isfinite(on_examples):
            line["example_epsilon"] = round_up(on_examples)
        if self.simulated_ledger is not None and math.isfinite(simulated := self.simulated_ledger.bound()):
            line["simulated_epsilon"] = round_up(simulated)
        if signal is not None and spec.noise and spec.size and spec.domain != "modular":  # there a sum has no length
            std = spec.noise * _noise_share(chain, clients)
            if std > 0:
                line["snr"] = float(f"{signal_to_noise(signal, spec.size, std):.4g}")
        return line

    def summary(self, state: Tree, quick: bool = False) -> PrivacyBlock:
        """The block of run.json: of the rounds made so far. `quick`: with the bounds that lines of the record have."""
        blocks = {"client": self._block(self.ledger, quick)} if self.has_mechanism else {}
        if self.examples is not None:
            blocks["example"] = self._example_block(quick)
        if self.simulated_ledger is not None:
            block = self._block(self.simulated_ledger, quick)
            block["sampler"] = f"{describe_simulated_sampler(self.simulated_ledger)}, imagined"
            blocks["simulates"] = {"label": "simulation only", **block}
        if self.canaries is not None and self.ledger.count and not quick:
            blocks["audit"] = self.canaries.verdict(state["chain"], self.ledger.delta)
        return blocks

    def forecast(self) -> list[str]:
        """What the whole run would cost, in words, if it goes on as it begins."""
        sentences, chain = [], self.chain_of(0)[0]
        if self.has_mechanism:
            ledger = self._new_ledger()
            ledger.parts = [(round_event(chain, self.participation, 0, self.request.crowd), self.rounds)]
            sentences.append(describe_guarantee(self._block(ledger)) + self._budget_note(ledger))
        if self.simulated_ledger is not None:
            ledger = self._new_ledger()
            ledger.parts = [(simulated_round_event(chain, self.participation, self.request), self.rounds)]
            guarantee = describe_guarantee(self._block(ledger))
            sentences.append(f"stands for {guarantee}, simulation only{self._budget_note(ledger)}")
        if self.examples is not None:
            sentences.append(describe_guarantee(self.examples.block(self.rounds)))
        return sentences

    def _budget_note(self, ledger: Ledger) -> str:
        """In words, after how many rounds like the first the budget ends the run."""
        budget, (event, rounds) = self.request.budget, ledger.parts[0]
        if budget is None or ledger.terms().broken or ledger.epsilon() <= budget:
            return ""
        ledger.parts = [(event, 1)]
        made = bisect_right(range(rounds), budget, key=ledger.epsilon)
        return f"; the budget, epsilon {budget:g}, ends it after {made} of {rounds} rounds"

    def _new_ledger(self) -> Ledger:
        return Ledger(self.rounds, self.request.delta, self.request.accountant)

    def _block(self, ledger: Ledger, quick: bool = False) -> PrivacyBlock:
        terms = ledger.terms()
        mechanism = self.mechanism + (", by shuffling" if any(gains_by_shuffling(e) for e, _ in ledger.parts) else "")
        facts: PrivacyBlock = {"unit": "client", "mechanism": mechanism, "rounds": ledger.count}
        if self.request.target is not None:
            facts["calibrated"] = dict(zip(("epsilon", "delta"), self.request.target, strict=True))
        if broken := self.broken or terms.broken:
            return {"holds": False, "why": broken, **facts}
        more = self._unplayed_rounds(ledger.count)
        spent = round_up(ledger.bound()) if quick else ledger.epsilon(more)
        if more and self.request.budget is not None:
            spent = min(spent, self.request.budget)  # it would have ended before that
        if not math.isfinite(spent) and quick:
            return {"holds": False, "why": "the account is made up when the run ends", **facts}
        if not math.isfinite(spent):
            return {"holds": False, "why": f"there is no guarantee at delta {ledger.delta:g}", **facts}
        return {
            "holds": True,
            "epsilon": spent,
            "delta": ledger.delta,
            **facts,
            "adjacency": terms.adjacency,
            "sampler": describe_sampler(self.participation),
            "accountant": QUICK_BOUND if quick else ledger.accountant(more).name,
            "assumed": [*terms.notes, *self.assumed, *self._unplayed_note(more)],
            **({} if self.request.budget is None else {"budget": self.request.budget}),
        }

    def _example_block(self, quick: bool) -> PrivacyBlock:
        assert self.examples is not None
        more = self._unplayed_rounds(self.count)
        block = self.examples.block(self.count + more, quick)
        notes = [*block["assumed"], *self.assumed, *self._unplayed_note(more)]
        return {**block, "rounds": self.count, "assumed": notes}

    def _unplayed_rounds(self, made: int) -> int:
        """Rounds that count although the run ended before them."""
        return self.rounds - made if self.cut_short else 0

    def _unplayed_note(self, more: int) -> list[str]:
        return [f"the run ended by what it had measured, so that all {self.rounds} rounds count"] if more else []


def _noise_share(chain: Chain, clients: int) -> float:
    """What is left of the noise where it is that of a larger cohort."""
    larger = [simulated.cohort for x in chain.mechanisms() if (simulated := x.simulates()) and simulated.cohort]
    return clients / larger[0] if larger else 1.0
