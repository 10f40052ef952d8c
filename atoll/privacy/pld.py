"""Privacy loss distributions (Meiser and Mohammadi, 2018; Doroshenko et al., 2022): dp-accounting and fast_pld.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from atoll.privacy.accountant import Parts, delta_of, epsilon_of, max_loss, supported_terms, why_not_on_grid
from atoll.privacy.composition import Plain, Term, flatten
from atoll.privacy.events import Approximate, Event, Gaussian, Laplace, Pure
from atoll.privacy.fast_pld import LossDistribution, subsampled_gaussian


@dataclass(frozen=True)
class Pld:
    """Pessimistic: losses are rounded so that epsilon is never too low. Both directions are composed."""

    name: str = "pld"
    interval: float = 1e-4  # the grid of losses; finer where a round loses little, wider where losses are very large
    points: float = 10.0  # of the grid, at least, within the standard deviation of the loss of one round
    quick: bool = False  # Poisson-sampled Gaussians by our own arrays: for guesses and bounds, not for figures

    def supports(self, event: Event) -> str | None:
        return next((why for term in flatten(event).terms if (why := why_not_on_grid(term))), None)

    def epsilon(self, event: Event, delta: float) -> float:
        return epsilon_of(supported_terms(self, event), delta, self._epsilon)

    def delta(self, event: Event, epsilon: float) -> float:
        return delta_of(supported_terms(self, event), epsilon, self._delta)

    def coarse(self) -> Pld:
        """One on a wider grid, for a first guess: faster, and a little higher."""
        return replace(self, interval=8 * self.interval, points=4.0, quick=True)

    def _epsilon(self, terms: Parts, delta: float) -> float:
        grid = self._grid(terms)
        if self.quick and len(terms) == 1 and _is_subsampled_gaussian(terms[0]):
            return max(losses.epsilon(delta) for losses in _subsampled_losses(terms[0], grid))
        return float(self._composed(terms, grid).get_epsilon_for_delta(delta))

    def _delta(self, terms: Parts, epsilon: float) -> float:
        grid = self._grid(terms)
        if self.quick and len(terms) == 1 and _is_subsampled_gaussian(terms[0]):
            return max(losses.delta(epsilon) for losses in _subsampled_losses(terms[0], grid))
        return float(self._composed(terms, grid).get_delta_for_epsilon(epsilon))

    def _composed(self, terms: Parts, grid: float) -> Any:
        first, *others = (_pld_of(term, grid, self.quick) for term in terms)
        for other in others:
            first = first.compose(other)
        return first

    def _grid(self, terms: Parts) -> float:
        fine = min(self.interval, *(_spread(term) / self.points for term in terms))
        return max(fine, *(max_loss(term) / 3e6 for term in terms))  # it must not outgrow memory


def _spread(term: Term) -> float:
    """About the standard deviation of the loss of one round: a grid as wide would add as much again every round."""
    event, rate = term.event, 1.0 if term.rate is None else term.rate
    if isinstance(event, Gaussian):
        return rate * math.sqrt(math.expm1(min(50.0, event.noise_multiplier**-2)))
    if isinstance(event, Laplace):
        return rate / event.scale
    assert isinstance(event, Pure | Approximate)
    return event.epsilon / 10


def _is_subsampled_gaussian(term: Term) -> bool:
    """Is it the usual case, which `fast_pld` computes?"""
    return isinstance(term.event, Gaussian) and term.rate is not None and term.rate < 1


def _subsampled_losses(term: Term, grid: float) -> tuple[LossDistribution, LossDistribution]:
    assert isinstance(term.event, Gaussian)
    assert term.rate is not None
    removed, added = _subsampled_round(term.event.noise_multiplier, term.rate, grid)
    return removed.self_compose(term.count), added.self_compose(term.count)


_subsampled_round = lru_cache(maxsize=16)(subsampled_gaussian)


def _pld_of(term: Term, grid: float, quick: bool) -> Any:
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld import privacy_loss_distribution as pld

    if quick and _is_subsampled_gaussian(term):
        both = (
            pld_pmf.DensePLDPmf(grid, x.lowest, x.mass, x.infinity_mass, True) for x in _subsampled_losses(term, grid)
        )
        return pld.PrivacyLossDistribution(*both)
    event, rate = term.event, 1.0 if term.rate is None else term.rate
    if isinstance(event, Gaussian) and term.rate is None:  # many Gaussians are one: 1/z² adds up
        std = event.noise_multiplier / math.sqrt(term.count)
        return pld.from_gaussian_mechanism(std, value_discretization_interval=grid)
    return _round(event, rate, grid).self_compose(term.count)


@lru_cache(maxsize=16)
def _round(event: Plain, rate: float, grid: float) -> Any:
    """The losses of one round, cached: every round of a run asks for them."""
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld

    if isinstance(event, Gaussian):
        return pld.from_gaussian_mechanism(
            event.noise_multiplier, value_discretization_interval=grid, sampling_prob=rate
        )
    if isinstance(event, Laplace):
        return pld.from_laplace_mechanism(event.scale, value_discretization_interval=grid, sampling_prob=rate)
    assert isinstance(event, Pure | Approximate)
    delta = event.delta if isinstance(event, Approximate) else 0.0
    return pld.from_privacy_parameters(common.DifferentialPrivacyParameters(event.epsilon, delta), grid)
