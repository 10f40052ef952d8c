"""What a run costs in privacy: the events of its rounds, from the sampler that draws them; and noise for a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from atoll.core import Chain, Participation, Spec, Transform
from atoll.core.settings import is_schedule, resolve
from atoll.core.transform import named
from atoll.errors import ConfigError
from atoll.experiment.experiment import Experiment, PrivacyTable, SimulateTable
from atoll.privacy.accountant import supported_terms
from atoll.privacy.calibrate import noise_for
from atoll.privacy.events import (
    Approximate,
    Banded,
    Composed,
    Event,
    Sampled,
    SamplingScheme,
    TreeAggregation,
    check_delta,
)
from atoll.privacy.ledger import ACCOUNTANTS, Ledger
from atoll.privacy.plan import accountant_for

_SCHEMES: dict[str, SamplingScheme] = {
    "everyone": "everyone",
    "fixed": "without_replacement",
    "fraction": "without_replacement",
    "fixed_with_replacement": "with_replacement",
    "poisson": "poisson",
    "cyclic": "cyclic",
    "cyclic_poisson": "cyclic_poisson",
}

_POORLY = ("without_replacement", "with_replacement")


@dataclass(frozen=True)
class Asked:
    """What a file says of privacy, and what was made of it."""

    delta: float
    accountant: str = "auto"
    budget: float | None = None
    simulate: SimulateTable | None = None
    calibrated: tuple[float, float] | None = None  # (epsilon, delta) that the noise was chosen for


def sampled(events: Sequence[Event], how: Participation) -> Event:
    """What mechanisms did to one cohort, and how it was drawn.

    >>> from atoll.privacy import Gaussian
    >>> sampled([Gaussian(1.0)], Participation("fixed", 10, size=10)).scheme
    'everyone'
    """
    one = events[0] if len(events) == 1 else Composed(tuple((e, 1) for e in events))
    n, known = how.population, _SCHEMES.get(how.scheme, "any")
    if known == "poisson" and how.probability is not None and how.probability < 1:
        return Sampled(one, "poisson", n, how.probability * n)
    if known == "cyclic_poisson" and how.expected is not None:
        return Sampled(one, known, n, how.expected, how.min_separation or 1)
    if known in ("without_replacement", "with_replacement", "cyclic") and how.size is not None:
        if known == "without_replacement" and how.size == n:
            return Sampled(one, "everyone", n, n)
        return Sampled(one, known, n, how.size, how.min_separation or 1)
    return Sampled(one, "everyone" if known in ("everyone", "poisson") else "any", n, n)


def larger(events: Sequence[Event], simulate: SimulateTable, cohort: int, apart: int) -> Event:
    """The same for the larger system that a run stands for."""
    scheme, n = simulate.sampling, simulate.population
    groups = apart if scheme in ("cyclic", "cyclic_poisson") else None
    if scheme in ("poisson", "cyclic_poisson"):
        rate = cohort * (groups or 1) / n
        if groups and rate > 1:
            raise ConfigError(
                f"privacy.simulate.population: {groups} groups of {cohort} need {groups * cohort} clients (got {n}). "
                "Use a larger population, or fewer groups (min_separation)."
            )
        return sampled(events, Participation(scheme, n, probability=rate, min_separation=groups))
    return sampled(events, Participation(scheme, n, size=cohort, min_separation=groups))


def asked(experiment: Experiment, layers: Sequence[Transform], population: int) -> Asked:
    """What the file says, checked: which delta counts, and that it is one that protects anybody."""
    table = experiment.privacy or PrivacyTable()
    units = table.simulate.population if table.simulate else population
    wish = next((x for x in layers if _wished(x)), None)
    given = table.delta if wish is None else wish.delta  # type: ignore[attr-defined]
    where = "privacy.delta" if wish is None else f"{named(wish)}.delta"
    if wish is not None and given is not None and table.delta not in (None, given):
        raise ConfigError(f"privacy.delta: {table.delta:g}, and {where} is {given:g}. Leave privacy.delta out.")
    if given is not None:
        check_delta(where, given)
        if given * units > 1 + 1e-9:
            raise ConfigError(
                f"{where}: {given:g} is above 1 / clients ({1 / units:g}): a mechanism may publish one client "
                f"as it is and still keep it. Use {0.1 / units:.1g} or less."
            )
    delta = given if given is not None else 0.1 / units
    return Asked(delta, table.accountant, table.budget, table.simulate)


def calibrated(chain: Chain, spec: Spec, how: Participation, rounds: int, known: Asked) -> tuple[Chain, Asked]:
    """The chain with a noise multiplier in place of an epsilon: the least with which the whole run keeps it."""
    at = [i for i, layer in enumerate(chain.transforms) if _wished(layer)]
    if not at:
        return chain, known
    layer: Any = chain.transforms[at[0]]
    name = named(layer)
    if len(at) > 1:
        raise ConfigError(f"{name}.epsilon: two mechanisms have an epsilon. Use one, or noise_multiplier.")
    if is_schedule(layer.noise_multiplier) or layer.noise_multiplier == layer.noise_multiplier:
        if layer.epsilon is None:
            raise ConfigError(
                f"{name}.delta: goes with an epsilon, and there is a noise_multiplier. "
                f"Use privacy.delta = {layer.delta:g}."
            )
        raise ConfigError(f"{name}: has a noise_multiplier and an epsilon. Leave one of them out.")
    if layer.epsilon is None or layer.delta is None:
        missing = "delta" if layer.epsilon is not None else "epsilon"
        raise ConfigError(f"{name}.{missing}: is missing: a budget is an epsilon and a delta.")

    def with_noise(z: float) -> Chain:
        new = replace(layer, noise_multiplier=z, epsilon=None, delta=None)
        return Chain((*chain.transforms[: at[0]], new, *chain.transforms[at[0] + 1 :]))

    def event(z: float) -> Event:
        bound = resolve(with_noise(z), 0, []).bind(spec)[0]
        return planned(bound, how, rounds, known)

    first = event(1.0)
    accountant = accountant_for(first, ACCOUNTANTS, known.accountant)
    terms = supported_terms(accountant, first)
    if terms.broken:
        raise ConfigError(f"{name}.epsilon: cannot be kept: {terms.broken}. Use a noise_multiplier, and no epsilon.")
    noise = _noise_for(_Same(event, repr(first)), layer.epsilon, layer.delta, accountant.name)
    return with_noise(noise), replace(known, calibrated=(layer.epsilon, layer.delta))


def described(bound: Chain, known: Asked) -> bool:
    """Does the chain stand for a larger system, and is it known how large?"""
    cohorts = (getattr(x, "noise_cohort", None) for x in bound.transforms if x.simulated_event() is not None)
    return bool(bound.simulated_events()) and (known.simulate is not None or all(c is None for c in cohorts))


def planned(bound: Chain, how: Participation, rounds: int, known: Asked) -> Event:
    """The event of a whole run, as its first round promises; of the larger system, where it only stands for one."""
    events = bound.simulated_events()
    one = standing_for(bound, events, how, known) if events else sampled(bound.events(), how)
    ledger = Ledger(rounds, known.delta, known.accountant)
    ledger.add(one)
    return ledger.event(rounds - 1)


def advice(bound: Chain, how: Participation, rounds: int, known: Asked) -> str | None:
    """That the same noise would cost less with another sampler, where that is so."""
    if how.size is None or how.size == how.population or _SCHEMES.get(how.scheme) not in _POORLY:
        return None
    if bound.simulated_events() or any(isinstance(e, Banded | TreeAggregation) for e in bound.events()):
        return None
    poisson = Participation("poisson", how.population, probability=min(1.0, how.size / how.population))
    costs = []
    for drawn in (how, poisson):
        book = Ledger(rounds, known.delta)
        book.parts = [(sampled(bound.events(), drawn), rounds)]
        costs.append(book.bound())
    if not costs[1] < 0.8 * costs[0]:
        return None
    return (
        f"The noise costs epsilon {costs[0]:.3g} with cohort.name = '{how.scheme}', and {costs[1]:.3g} with "
        f"cohort = {{ name = 'poisson', size = {how.size} }}: less amplification is known for other samplers."
    )


def standing_for(bound: Chain, events: Sequence[Event], how: Participation, known: Asked) -> Event:
    """A round of the larger system; a ConfigError where nobody said how large it is."""
    layer = next(x for x in bound.transforms if x.simulated_event() is not None)
    cohort: int | None = getattr(layer, "noise_cohort", None)
    if cohort is None:  # a local mechanism, whoever else takes part
        return sampled(events, how)
    if known.simulate is None:
        raise ConfigError(
            f"{named(layer)}.noise_cohort: stands for a larger system, and how large it is was not said. "
            'Add [privacy] with simulate = { population = 1_000_000, sampling = "poisson" }.'
        )
    apart = getattr(layer, "participation_gap", None) or getattr(layer, "min_separation", None) or 1
    return larger(events, known.simulate, cohort, apart)


def spends_delta(event: Event) -> float:
    """What approximate mechanisms of one round may lose at once."""
    if isinstance(event, Sampled):
        return spends_delta(event.event)
    if isinstance(event, Composed):
        return sum(n * spends_delta(e) for e, n in event.parts)
    return event.delta if isinstance(event, Approximate) else 0.0


def _wished(layer: Transform) -> bool:
    return any(getattr(layer, wish) is not None for wish in layer.calibrated_options)


class _Same:
    """A function from noise to events, equal to others that give the same event: so that a sweep calibrates once."""

    def __init__(self, event: Any, mark: str) -> None:
        self.event, self.mark = event, mark

    def __call__(self, z: float) -> Event:
        found: Event = self.event(z)
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.mark == self.mark

    def __hash__(self) -> int:
        return hash(self.mark)


@lru_cache(maxsize=64)
def _noise_for(event: _Same, epsilon: float, delta: float, accountant: str) -> float:
    return noise_for(event, epsilon, delta, ACCOUNTANTS[accountant])
