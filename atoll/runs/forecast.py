"""What a run would take in virtual time, before anybody trains: steps and bytes are known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from atoll.clock import Timeline
from atoll.core import PLAYED_ROUNDS, Participation
from atoll.experiment import Setup
from atoll.runs.round_plan import RoundPlan
from atoll.tree import Tree


@dataclass(frozen=True)
class Forecast:
    """Virtual seconds of a run's rounds, and how many clients they do without."""

    rounds: int  # of the run
    seconds: list[float]  # of each round that was worked out
    asked: int  # clients in these rounds
    left_out: int
    void: int
    at_most: bool = False  # lengths depend on numbers

    @property
    def total(self) -> float:
        return sum(self.seconds) / max(1, len(self.seconds)) * self.rounds

    def sentence(self) -> str:
        """For people."""
        low, high, mean = min(self.seconds), max(self.seconds), self.total / self.rounds
        about = "about " if self.rounds > len(self.seconds) else ""
        most = "at most " if self.at_most else ""
        lost = f"; {self.left_out / max(1, self.asked):.1%} of the clients asked do not count" if self.left_out else ""
        void = f"; {self.void} of {len(self.seconds)} rounds are void" if self.void else ""
        spread = f"{mean:.3g} s a round ({low:.3g} to {high:.3g})"
        return f"{spread}, {most}{about}{self.total:,.4g} s of virtual time for all {self.rounds}{lost}{void}"


def virtual_time(setup: Setup, first: Timeline, state: Tree | None = None) -> Forecast:
    """Round by round, with the pace of the first, and the sizes that messages have at most.

    `state` is that before the first round, once a run has begun; left out, it is made anew.
    """
    experiment, plan, lines = setup.experiment, RoundPlan(setup), list[Timeline]()
    ctx = plan.context(0)
    if state is None:
        state = setup.round.init(ctx, setup.model, setup.server_key)
        state = setup.round.begun(state, lambda: first.seconds_per_step)
    varies = setup.round.lengths_vary(ctx, state)
    known = setup.round.forecast(first, lambda number: plan.sample(number)[0], min(experiment.rounds, PLAYED_ROUNDS))
    for number in range(0 if known is not None else min(experiment.rounds, PLAYED_ROUNDS)):
        drawn = plan.sample(number)
        timed = setup.round.timed(replace(ctx, number=number, sample=partial(_same, drawn)), state, plan.key(number))
        assert timed is not None, "a round with a timeline has a clock"
        lines.append(timed[0])
        state = timed[1]
    lines = lines if known is None else known
    asked, counted = sum(len(t.ids) for t in lines), sum(int(t.counted.sum()) for t in lines)
    seconds = [t.seconds for t in lines]
    left_out, void = asked - counted, sum(t.void for t in lines)
    return Forecast(experiment.rounds, seconds, asked, left_out, void, varies)


def _same(drawn: tuple[Tensor, Participation]) -> tuple[Tensor, Participation]:
    return drawn
