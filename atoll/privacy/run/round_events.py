"""What rounds are to an accountant: the events of their mechanisms, and how the cohort was really drawn."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.core import Chain, Participation, Simulated, Transform, transform_name
from atoll.errors import ConfigError
from atoll.privacy import (
    Approximate,
    Composed,
    DistributedDiscreteGaussian,
    DistributedSkellam,
    Event,
    Ledger,
    NotPrivate,
    Pure,
    Sampled,
    SamplingScheme,
    Shuffled,
    amplified,
)
from atoll.privacy.run.request import Crowd, PrivacyRequest
from atoll.privacy.run.tables import SimulateTable

SCHEMES: dict[str, SamplingScheme] = {  # of an accountant, by those of samplers
    "everyone": "everyone",
    "fixed": "without_replacement",
    "fraction": "without_replacement",
    "fixed_with_replacement": "with_replacement",
    "poisson": "poisson",
    "cyclic": "cyclic",
    "cyclic_poisson": "cyclic_poisson",
}
# each client adds noise of its own, or a share of the noise
_CLIENT_SIDE_NOISE = (DistributedDiscreteGaussian, DistributedSkellam, Pure, Approximate)


def sampled_event(events: Sequence[Event], participation: Participation) -> Event:
    """What mechanisms did to one cohort, and how it was drawn.

    >>> from atoll.privacy import Gaussian
    >>> sampled_event([Gaussian(1.0)], Participation("fixed", 10, size=10)).scheme
    'everyone'
    """
    event = events[0] if len(events) == 1 else Composed(tuple((e, 1) for e in events))
    n, scheme = participation.population, SCHEMES.get(participation.scheme, "any")
    size, min_separation = participation.size, participation.min_separation or 1
    if scheme == "poisson" and participation.probability is not None and participation.probability < 1:
        return Sampled(event, "poisson", n, participation.probability * n)
    if scheme == "cyclic_poisson" and participation.expected is not None:
        return Sampled(event, scheme, n, participation.expected, min_separation)
    if scheme in ("without_replacement", "with_replacement", "cyclic") and size is not None:
        if scheme == "without_replacement" and size == n:
            return Sampled(event, "everyone", n, n)
        return Sampled(event, scheme, n, size, min_separation)
    return Sampled(event, "everyone" if scheme in ("everyone", "poisson") else "any", n, n)


def round_event(bound: Chain, participation: Participation, left_out: int, crowd: Crowd | None = None) -> Event:
    """The event of one round. Noise that clients add themselves is not there where some of them were left out."""
    events = bound.events()
    if left_out and any(isinstance(e, _CLIENT_SIDE_NOISE) for e in events):
        return NotPrivate(
            f"updates that were not finite ({left_out}) were left out, and their clients' noise with them"
        )
    return sampled_event(in_crowd(events, crowd), participation)


def in_crowd(events: Sequence[Event], crowd: Crowd | None) -> Sequence[Event]:
    """What a shuffle makes of one pure local mechanism. Of anything else no amplification is claimed."""
    if crowd is None or len(events) != 1 or not isinstance(local := events[0], Pure):
        return events
    return [Shuffled(local, crowd.reports, crowd.delta)]


def gains_by_shuffling(event: Event) -> bool:
    """Does the round cost less than its local mechanism alone?"""
    inner = event.event if isinstance(event, Sampled) else event
    return isinstance(inner, Shuffled) and amplified(inner) != inner.local


def rests_on_everybody(bound: Chain) -> bool:
    """Is the noise made of shares that clients add, so that one who does not report takes some of it away?"""
    return any(isinstance(e, DistributedDiscreteGaussian | DistributedSkellam) for e in bound.events())


def simulated_round_event(bound: Chain, participation: Participation, request: PrivacyRequest) -> Event:
    """The event of a round of the larger system; a ConfigError where nobody said how large it is."""
    transform, system = _simulated_systems(bound)[0]
    if system.cohort is None:  # a local mechanism, whoever else takes part
        return sampled_event(bound.simulated_events(), participation)
    if request.simulate is None:
        raise ConfigError(
            f"{transform_name(transform)}.noise_cohort: stands for a larger system, and how large it is was not said. "
            'Add [privacy] with simulate = { population = 1_000_000, sampling = "poisson" }.'
        )
    return larger_system_event(bound.simulated_events(), request.simulate, system.cohort, system.min_separation)


def _simulated_systems(bound: Chain) -> list[tuple[Transform, Simulated]]:
    """The mechanisms that stand for a larger system, and what they stand for."""
    return [(x, system) for x in bound.mechanisms() if (system := x.simulates()) is not None]


def larger_system_event(events: Sequence[Event], simulate: SimulateTable, cohort: int, min_separation: int) -> Event:
    """What mechanisms would do to one cohort of the larger system that a run stands for."""
    scheme, n = simulate.sampling, simulate.population
    groups = min_separation if scheme in ("cyclic", "cyclic_poisson") else None
    if scheme in ("poisson", "cyclic_poisson"):
        rate = cohort * (groups or 1) / n
        if groups and rate > 1:
            raise ConfigError(
                f"privacy.simulate.population: {groups} groups of {cohort} need {groups * cohort} clients (got {n}). "
                "Use a larger population, or fewer groups (min_separation)."
            )
        return sampled_event(events, Participation(scheme, n, probability=rate, min_separation=groups))
    return sampled_event(events, Participation(scheme, n, size=cohort, min_separation=groups))


def run_event(bound: Chain, participation: Participation, rounds: int, request: PrivacyRequest) -> Event:
    """The event of a whole run, as its first round promises; of the larger system, where it only stands for one."""
    if bound.simulated_events():
        first = simulated_round_event(bound, participation, request)
    else:
        first = round_event(bound, participation, 0, request.crowd)
    ledger = Ledger(rounds, request.delta, request.accountant)
    ledger.add(first)
    return ledger.event(rounds - 1)


def states_simulated_system(bound: Chain, request: PrivacyRequest) -> bool:
    """Does the chain stand for a larger system, and is it known how large?"""
    systems = _simulated_systems(bound)
    return bool(systems) and (request.simulate is not None or all(system.cohort is None for _, system in systems))


def approximate_delta(event: Event) -> float:
    """What approximate mechanisms of one round may lose at once."""
    if isinstance(event, Sampled):
        return approximate_delta(event.event)
    if isinstance(event, Composed):
        return sum(n * approximate_delta(e) for e, n in event.parts)
    return event.delta if isinstance(event, Approximate) else 0.0
