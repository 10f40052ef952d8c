"""What a run would take in virtual time, before anybody trains: steps and bytes are known."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from atoll import rng
from atoll.clock import Timeline
from atoll.experiment import Setup, make_clock

_MOST = 1000  # rounds that are worked out one by one


@dataclass(frozen=True)
class Forecast:
    """Virtual seconds of a run's rounds, and how many clients they do without."""

    rounds: int  # of the run
    seconds: list[float]  # of each round that was worked out
    asked: int  # clients in these rounds
    left_out: int
    void: int

    @property
    def total(self) -> float:
        return sum(self.seconds) / max(1, len(self.seconds)) * self.rounds

    def sentence(self) -> str:
        """For people."""
        low, high, mean = min(self.seconds), max(self.seconds), self.total / self.rounds
        about = "about " if self.rounds > len(self.seconds) else ""
        lost = f"; {self.left_out / max(1, self.asked):.1%} of the clients asked do not count" if self.left_out else ""
        void = f"; {self.void} of {len(self.seconds)} rounds are void" if self.void else ""
        spread = f"{mean:.3g} s a round ({low:.3g} to {high:.3g})"
        return f"{spread}, {about}{self.total:,.4g} s of virtual time for all {self.rounds}{lost}{void}"


def virtual_time(setup: Setup, first: Timeline) -> Forecast:
    """Round by round, with the bytes and the pace of the first."""
    experiment, population = setup.experiment, setup.population
    assert experiment.clock is not None
    clock = make_clock(experiment, experiment.clock, population.size, setup.training, setup.dataset.labels)
    now, lines = 0.0, list[Timeline]()

    def pool(number: int) -> Tensor:
        ids: Tensor = setup.sampler.sample(population.size, number, rng.key(experiment.seed, "cohort"))[0]
        return ids

    known = setup.round.forecast(first, pool, min(experiment.rounds, _MOST))
    for number in range(0 if known is not None else min(experiment.rounds, _MOST)):
        ids = pool(number)
        work = ids.numpy(), population.steps(ids).numpy(), first.down, first.up
        paces = first.seconds_per_step, first.overhead, first.seconds_to_compress
        lines.append(clock.timeline(number, *work, now, *paces))
        now = lines[-1].end
    lines = lines if known is None else known
    asked, counted = sum(len(t.ids) for t in lines), sum(int(t.counted.sum()) for t in lines)
    seconds = [t.seconds for t in lines]
    return Forecast(experiment.rounds, seconds, asked, asked - counted, sum(t.void for t in lines))
