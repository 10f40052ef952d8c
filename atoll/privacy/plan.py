"""A run in numbers, before it is made: which event it will be, for any noise and any number of rounds.

>>> ((one, count),) = PrivacyPlan(rounds=3, population=10).event(noise=1.0).parts
>>> one.event, one.scheme, count
(Gaussian(noise_multiplier=1.0), 'everyone', 3)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from atoll.errors import ConfigError
from atoll.privacy.accountant import Accountant
from atoll.privacy.events import Banded, Composed, Event, Gaussian, Laplace, Sampled, SamplingScheme, TreeAggregation

Mechanism = Literal["gaussian", "laplace", "banded", "tree"]
_GROUPS = ("cyclic", "cyclic_poisson")
PLANNED: tuple[str, ...] = ("gaussian", "laplace", "banded", "tree")


@dataclass(frozen=True)
class PrivacyPlan:
    """What `atoll privacy` is told; `cohort` None is everyone."""

    rounds: int
    population: int
    cohort: float | None = None
    sampling: SamplingScheme = "everyone"
    mechanism: Mechanism = "gaussian"
    min_separation: int = 1
    bands: int | None = None  # None: as many as the separation allows
    restart: int | None = None

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"rounds: must be at least 1 (got {self.rounds}).")
        if self.mechanism not in PLANNED:
            raise ConfigError(f"mechanism: {self.mechanism!r} is unknown. Use one of {', '.join(PLANNED)}.")
        if self.cohort is None and self.sampling != "everyone":
            raise ConfigError(f"cohort: {self.sampling} sampling needs a cohort size. For all of them: 'everyone'.")
        needed = (self.cohort or 0) * self.min_separation
        if self.cohort is not None and self.sampling in _GROUPS and needed > self.population:
            raise ConfigError(
                f"min_separation: {self.min_separation} groups of {self.cohort:g} need {needed:g} units, "
                f"and there are {self.population}. Use at most {int(self.population // self.cohort)}."
            )

    def event(self, noise: float, rounds: int | None = None) -> Event:
        """The event of the first `rounds` rounds (None: of all) with this noise multiplier."""
        n = self.rounds if rounds is None else rounds
        cohort = self.population if self.cohort is None or self.sampling == "everyone" else self.cohort
        one = Sampled(self._mechanism(noise, n), self.sampling, self.population, cohort, self.min_separation)
        return Composed(((one, 1 if self.mechanism in ("banded", "tree") else n),))

    def _mechanism(self, noise: float, rounds: int) -> Event:
        if self.mechanism == "gaussian":
            return Gaussian(noise)
        if self.mechanism == "laplace":
            return Laplace(noise)
        if self.mechanism == "banded":
            return Banded(noise, self.bands or self.min_separation, self.min_separation, rounds)
        pattern: Literal["cyclic", "separated"] = (
            "cyclic" if self.sampling in _GROUPS or self.min_separation == 1 else "separated"
        )
        return TreeAggregation(noise, rounds, self.min_separation, restart=self.restart, pattern=pattern)


def accountant_for(event: Event, accountants: dict[str, Accountant], name: str = "auto") -> Accountant:
    """The accountant of this name; "auto" is the first that supports the event."""
    if name != "auto" and name not in accountants:
        raise ConfigError(f"accountant: {name!r} is unknown. Use one of auto, {', '.join(accountants)}.")
    if name != "auto":
        return accountants[name]
    supporting = next((a for a in accountants.values() if a.supports(event) is None), None)
    if supporting is None:  # all but pld refuse some mechanisms, and pld refuses those that outgrow its grid
        raise ConfigError(f"accountant: none can account this: {accountants['pld'].supports(event)}")
    return supporting
