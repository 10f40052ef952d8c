"""What a mechanism did, in numbers; what it cost is for an accountant to say.

A transform's event is ONE round on one cohort; `Banded` and `TreeAggregation` are the whole run. Subsampling and
composition over rounds are added by the run, from the sampler that really ran:

>>> rounds = Composed(((Sampled(Gaussian(1.0), "poisson", population=1000, cohort=10), 50),))
>>> rounds.parts[0][0].rate
0.01
>>> Gaussian(-1.0)
Traceback (most recent call last):
atoll.errors.ConfigError: gaussian.noise_multiplier: must be 0 or between 1e-10 and 1e10 (got -1.0). ...
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from atoll.errors import ConfigError

MIN_NOISE, MAX_NOISE = 1e-10, 1e10  # noise that can be accounted: far below or above, its square is no number
SamplingScheme = Literal[
    "poisson", "without_replacement", "with_replacement", "cyclic", "cyclic_poisson", "everyone", "any"
]


@dataclass(frozen=True)
class Gaussian:
    """Normal noise on a sum: its standard deviation over the most that one unit adds (L2)."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        check_noise("gaussian.noise_multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class Laplace:
    """Laplace noise on a sum: its scale over the most that one unit adds (L1)."""

    scale: float

    def __post_init__(self) -> None:
        check_noise("laplace.scale", self.scale)


@dataclass(frozen=True)
class DistributedDiscreteGaussian:
    """Integer noise that `clients` of a secure sum add together (Kairouz, Liu and Steinke, 2021).

    `noise_multiplier` is the standard deviation of the whole noise over `l2`, the most that one unit adds, in grid
    steps. With one client it is the central mechanism of Canonne, Kamath and Steinke (2020).
    """

    noise_multiplier: float
    l2: float = 1.0
    clients: int = 1
    dimension: int = 1

    def __post_init__(self) -> None:
        check_noise("discrete_gaussian.noise_multiplier", self.noise_multiplier)
        _positive("discrete_gaussian.l2", self.l2)
        _whole("discrete_gaussian.clients", self.clients)
        _whole("discrete_gaussian.dimension", self.dimension)


@dataclass(frozen=True)
class DistributedSkellam:
    """Skellam noise on a secure sum (Agarwal, Kairouz and Liu, 2021): variance (noise_multiplier x l2)², in grid steps.

    `l2` and `l1` bound what one unit adds, in grid steps.
    """

    noise_multiplier: float
    l2: float
    l1: float

    def __post_init__(self) -> None:
        check_noise("skellam.noise_multiplier", self.noise_multiplier)
        _positive("skellam.l2", self.l2)
        _positive("skellam.l1", self.l1)


@dataclass(frozen=True)
class Pure:
    """A local mechanism that is epsilon-DP for any two inputs. No amplification: who reads it sees who sent it."""

    epsilon: float

    def __post_init__(self) -> None:
        check_epsilon("pure.epsilon", self.epsilon)


@dataclass(frozen=True)
class Approximate:
    """A local mechanism that is (epsilon, delta)-DP for any two inputs."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_epsilon("approximate.epsilon", self.epsilon)
        check_delta("approximate.delta", self.delta)


@dataclass(frozen=True)
class Shuffled:
    """At least so many reports of a local mechanism, in a random order that hides whose each is.

    `delta` is what this one shuffle takes of the run's: `shuffling.shuffled` says what it gains.
    """

    local: Pure
    reports: int
    delta: float

    def __post_init__(self) -> None:
        _whole("shuffled.reports", self.reports)
        check_delta("shuffled.delta", self.delta)


@dataclass(frozen=True)
class Banded:
    """Banded matrix factorisation over a whole run (Choquette-Choo et al., 2023).

    Noise C⁻¹z, z of standard deviation `noise_multiplier` x the most that one unit adds in ONE round; C has `bands`
    bands and columns of length at most 1 (what `factorisation.banded` makes). A unit takes part at most
    `participations` times (None: as often as min_separation allows), never twice within `min_separation` rounds; with
    no more bands than that its columns do not overlap, so the sensitivity is the square root of the participations.
    Where a coin decides at every turn ("cyclic_poisson"), each turn is one sampled Gaussian instead: see
    `composition.flatten`.
    """

    noise_multiplier: float
    bands: int
    min_separation: int
    rounds: int
    participations: int | None = None

    def __post_init__(self) -> None:
        check_noise("banded.noise_multiplier", self.noise_multiplier)
        _run("banded", self.rounds, self.min_separation, self.participations)
        _whole("banded.bands", self.bands)
        if self.bands > self.min_separation:
            raise ConfigError(
                f"banded.bands: {self.bands} bands need a unit to wait {self.bands} rounds for its next turn, and "
                f"min_separation is {self.min_separation}. Use bands at most {self.min_separation}, or a larger "
                "min_separation."
            )

    @property
    def max_participations(self) -> int:
        """The most often that one unit takes part."""
        return self.participations or max_participations(self.rounds, self.min_separation)


@dataclass(frozen=True)
class TreeAggregation:
    """Binary tree aggregation over a whole run (Kairouz et al., 2021): noise on every complete node.

    `noise_multiplier` is the standard deviation on one node over the most that one unit adds in ONE round. `restart`
    starts a new tree every so many rounds (None: one tree). `pattern` "cyclic": a unit has its turn every
    `min_separation` rounds, in the same phase for the whole run; "separated": at least `min_separation` rounds lie
    between two turns.
    """

    noise_multiplier: float
    rounds: int
    min_separation: int = 1
    participations: int | None = None
    restart: int | None = None
    pattern: Literal["cyclic", "separated"] = "separated"

    def __post_init__(self) -> None:
        check_noise("tree.noise_multiplier", self.noise_multiplier)
        _run("tree", self.rounds, self.min_separation, self.participations)
        if self.restart is not None:
            _whole("tree.restart", self.restart)
        if self.pattern not in ("cyclic", "separated"):
            raise ConfigError(f"tree.pattern: {self.pattern!r} is unknown. Use 'cyclic' or 'separated'.")

    @property
    def max_participations(self) -> int:
        """The most often that one unit takes part."""
        return self.participations or max_participations(self.rounds, self.min_separation)


@dataclass(frozen=True)
class NotPrivate:
    """Something without a guarantee, and why. Its epsilon is infinite and is never printed as a number."""

    why: str


@dataclass(frozen=True)
class Sampled:
    """An event on a cohort drawn like this. `cohort` is the expected size where it varies (Poisson).

    `min_separation` belongs to "cyclic" and "cyclic_poisson": units are dealt into so many groups, independently of
    their data, and a unit has its turn every so many rounds, with its group. It comes to its turns with `rate`:

    >>> Sampled(Gaussian(1.0), "cyclic_poisson", population=1_000_000, cohort=1000, min_separation=48).rate
    0.048
    """

    event: Event
    scheme: SamplingScheme
    population: int
    cohort: float
    min_separation: int = 1

    def __post_init__(self) -> None:
        if self.scheme not in get_args(SamplingScheme):
            raise ConfigError(
                f"sampled.scheme: {self.scheme!r} is unknown. Use one of {', '.join(get_args(SamplingScheme))}."
            )
        _whole("sampled.population", self.population)
        _whole("sampled.min_separation", self.min_separation)
        most = math.inf if self.scheme == "with_replacement" else self.population
        if not 0 < self.cohort <= most:
            smaller = "a smaller cohort, or " if self.cohort > 0 else ""
            raise ConfigError(
                f"sampled.cohort: must be above 0 and at most the population, {self.population} (got {self.cohort}). "
                f"Use {smaller}scheme = 'everyone' with all of them."
            )
        if self.scheme not in ("poisson", "cyclic_poisson") and self.cohort != int(self.cohort):
            raise ConfigError(f"sampled.cohort: must be a whole number for {self.scheme!r} (got {self.cohort}).")
        if self.scheme == "cyclic_poisson" and self.cohort * self.min_separation > self.population * (1 + 1e-9):
            raise ConfigError(
                f"sampled.min_separation: {self.min_separation} groups of {self.cohort:g} need more units than there "
                f"are, {self.population}. Use at most {int(self.population // self.cohort)}, or a smaller cohort."
            )

    @property
    def participation_gap(self) -> int:
        """Rounds from one participation of a unit to its next, as far as the sampler sees to it."""
        return self.min_separation if self.scheme in ("cyclic", "cyclic_poisson") else 1

    @property
    def rate(self) -> float:
        """The probability of one unit to be in the cohort of one round, where units are independent; of its turns."""
        return min(1.0, self.cohort * self.participation_gap / self.population)


@dataclass(frozen=True)
class Composed:
    """Events one after the other, each with how often: ((event, count), ...). A later one may see earlier ones."""

    parts: tuple[tuple[Event, int], ...]

    def __post_init__(self) -> None:
        for i, (_, count) in enumerate(self.parts):
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                raise ConfigError(f"composed.parts[{i}]: the count must be a whole number, at least 0 (got {count}).")


Event = (
    Gaussian
    | Laplace
    | DistributedDiscreteGaussian
    | DistributedSkellam
    | Pure
    | Approximate
    | Shuffled
    | Banded
    | TreeAggregation
    | NotPrivate
    | Sampled
    | Composed
)


def max_participations(rounds: int, min_separation: int) -> int:
    """The most participations of one unit in so many rounds: ceil(rounds / min_separation)."""
    return -(-rounds // min_separation)


def check_epsilon(where: str, value: float) -> None:
    """Refuse an epsilon that is not a positive number."""
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"{where}: must be above 0 and finite (got {value}). Usual values lie between 0.5 and 10.")


def check_delta(where: str, value: float) -> None:
    if not 0 < value < 1:
        raise ConfigError(f"{where}: must be above 0 and below 1 (got {value}). Use less than 1 / population.")


def check_noise(where: str, value: float) -> None:
    if not (value == 0 or MIN_NOISE <= value <= MAX_NOISE):
        raise ConfigError(
            f"{where}: must be 0 or between 1e-10 and 1e10 (got {value}). Usual values lie between 0.3 and 20; "
            "0 is no noise and no privacy."
        )


def _positive(where: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"{where}: must be above 0 and finite (got {value}).")


def _whole(where: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{where}: must be a whole number, at least 1 (got {value}).")


def _run(where: str, rounds: int, min_separation: int, participations: int | None) -> None:
    _whole(f"{where}.rounds", rounds)
    _whole(f"{where}.min_separation", min_separation)
    if participations is None:
        return
    _whole(f"{where}.participations", participations)
    if participations > max_participations(rounds, min_separation):
        raise ConfigError(
            f"{where}.participations: {rounds} rounds with a min_separation of {min_separation} leave a unit at most "
            f"{max_participations(rounds, min_separation)} turns (got {participations})."
        )
