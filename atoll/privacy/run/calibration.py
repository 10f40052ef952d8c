"""Noise for a run: the least that keeps an epsilon, and whether another sampler would make it cheaper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from atoll.core import Chain, Participation, Spec, resolve, transform_name
from atoll.errors import ConfigError
from atoll.privacy import (
    ACCOUNTANTS,
    Banded,
    Event,
    Ledger,
    TreeAggregation,
    accountant_for,
    noise_for,
    supported_terms,
)
from atoll.privacy.run.request import PrivacyRequest, has_target
from atoll.privacy.run.round_events import SCHEMES, run_event, sampled_event
from atoll.schedules import Schedule

_LITTLE_AMPLIFICATION = ("without_replacement", "with_replacement")


def calibrate_noise(
    chain: Chain, spec: Spec, participation: Participation, rounds: int, request: PrivacyRequest
) -> tuple[Chain, PrivacyRequest]:
    """The chain with a noise multiplier in place of an epsilon: the least with which the whole run keeps it."""
    positions = [i for i, transform in enumerate(chain.transforms) if has_target(transform)]
    if not positions:
        return chain, request
    place, mechanism = positions[0], _checked_target(chain, positions)
    name = transform_name(mechanism)

    def with_noise(noise_multiplier: float) -> Chain:
        new = replace(mechanism, noise_multiplier=noise_multiplier, epsilon=None, delta=None)
        return Chain((*chain.transforms[:place], new, *chain.transforms[place + 1 :]))

    def event(noise_multiplier: float) -> Event:
        bound = resolve(with_noise(noise_multiplier), 0, []).bind(spec)[0]
        return run_event(bound, participation, rounds, request)

    unit_event = event(1.0)
    accountant = accountant_for(unit_event, ACCOUNTANTS, request.accountant)
    terms = supported_terms(accountant, unit_event)
    if terms.broken:
        raise ConfigError(f"{name}.epsilon: cannot be kept: {terms.broken}. Use a noise_multiplier, and no epsilon.")
    noise = _noise_for(_EventOfNoise(event, repr(unit_event)), mechanism.epsilon, mechanism.delta, accountant.name)
    return with_noise(noise), replace(request, target=(mechanism.epsilon, mechanism.delta))


def sampler_advice(bound: Chain, participation: Participation, rounds: int, request: PrivacyRequest) -> str | None:
    """That the same noise would cost less with another sampler, where that is so."""
    size, population = participation.size, participation.population
    if size is None or size == population or SCHEMES.get(participation.scheme) not in _LITTLE_AMPLIFICATION:
        return None
    if bound.simulated_events() or any(isinstance(e, Banded | TreeAggregation) for e in bound.events()):
        return None
    poisson = Participation("poisson", population, probability=min(1.0, size / population))
    costs = []
    for drawn in (participation, poisson):
        ledger = Ledger(rounds, request.delta)
        ledger.parts = [(sampled_event(bound.events(), drawn), rounds)]
        costs.append(ledger.bound())
    if not costs[1] < 0.8 * costs[0]:
        return None
    return (
        f"The noise costs epsilon {costs[0]:.3g} with cohort.name = '{participation.scheme}', and {costs[1]:.3g} with "
        f"cohort = {{ name = 'poisson', size = {size} }}: less amplification is known for other samplers."
    )


def _checked_target(chain: Chain, positions: list[int]) -> Any:
    """The one mechanism that has an epsilon and a delta, and no noise multiplier."""
    mechanism: Any = chain.transforms[positions[0]]
    name = transform_name(mechanism)
    if len(positions) > 1:
        raise ConfigError(f"{name}.epsilon: two mechanisms have an epsilon. Use one, or noise_multiplier.")
    if isinstance(mechanism.noise_multiplier, Schedule) or mechanism.noise_multiplier == mechanism.noise_multiplier:
        if mechanism.epsilon is None:
            raise ConfigError(
                f"{name}.delta: goes with an epsilon, and there is a noise_multiplier. "
                f"Use privacy.delta = {mechanism.delta:g}."
            )
        raise ConfigError(f"{name}: has a noise_multiplier and an epsilon. Leave one of them out.")
    if mechanism.epsilon is None or mechanism.delta is None:
        missing = "delta" if mechanism.epsilon is not None else "epsilon"
        raise ConfigError(f"{name}.{missing}: is missing: a budget is an epsilon and a delta.")
    return mechanism


class _EventOfNoise:
    """A function from noise to events, equal to others that give the same event: so that a sweep calibrates once."""

    def __init__(self, event: Callable[[float], Event], fingerprint: str) -> None:
        self.event, self.fingerprint = event, fingerprint

    def __call__(self, noise_multiplier: float) -> Event:
        return self.event(noise_multiplier)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _EventOfNoise) and other.fingerprint == self.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)


@lru_cache(maxsize=64)
def _noise_for(event: _EventOfNoise, epsilon: float, delta: float, accountant: str) -> float:
    return noise_for(event, epsilon, delta, ACCOUNTANTS[accountant])
