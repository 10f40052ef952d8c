"""Privacy random variables (Gopi, Lee and Wutschitz, 2021), over prv-accountant."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from atoll.errors import ConfigError
from atoll.privacy.accountant import Parts, delta_of, epsilon_of, supported_terms, why_not_on_grid
from atoll.privacy.composition import Term, flatten
from atoll.privacy.events import Approximate, Event, Gaussian, Laplace, Pure


@dataclass(frozen=True)
class Prv:
    """The upper end of its error interval, not the estimate: at most `error` too high in epsilon.

    For Poisson sampling it composes the direction "a unit is removed", the worse one for a Gaussian.
    """

    name: str = "prv"
    error: float = 0.005

    def supports(self, event: Event) -> str | None:
        for term in flatten(event).terms:
            if term.rate is not None and not isinstance(term.event, Gaussian):
                return f"no bound for Poisson-sampled {type(term.event).__name__}. Use accountant = 'pld'."
            if why := why_not_on_grid(term):
                return why
        return None

    def epsilon(self, event: Event, delta: float) -> float:
        return epsilon_of(supported_terms(self, event), delta, self._epsilon)

    def delta(self, event: Event, epsilon: float) -> float:
        return delta_of(supported_terms(self, event), epsilon, self._delta)

    def _epsilon(self, terms: Parts, delta: float) -> float:
        return self._upper(_merge_gaussians(terms), delta / 1000, "compute_epsilon", delta)

    def _delta(self, terms: Parts, epsilon: float) -> float:
        return self._upper(_merge_gaussians(terms), 1e-12, "compute_delta", epsilon)

    def _upper(self, terms: Parts, delta_error: float, what: str, at: float) -> float:
        import numpy as np
        from prv_accountant import PRVAccountant

        counts = [term.count for term in terms]
        try:
            with np.errstate(all="ignore"):  # it computes both branches of a case and takes one
                accountant = PRVAccountant(
                    [_variable(term) for term in terms], self.error, delta_error, max_self_compositions=counts
                )
                return float(getattr(accountant, what)(at, counts)[2])
        except MemoryError:
            raise ConfigError(
                "privacy.accountant: prv needs more memory than there is for losses as large. Use 'pld' or 'rdp'."
            ) from None


def _merge_gaussians(terms: Parts) -> Parts:
    """Many Gaussians without sampling are one: 1/z² adds up."""
    return tuple(
        Term(Gaussian(t.event.noise_multiplier / math.sqrt(t.count)), 1)
        if isinstance(t.event, Gaussian) and t.rate is None
        else t
        for t in terms
    )


def _variable(term: Term) -> Any:
    import prv_accountant as prv

    event = term.event
    if isinstance(event, Gaussian) and term.rate is not None and term.rate < 1:
        return prv.PoissonSubsampledGaussianMechanism(term.rate, event.noise_multiplier)
    if isinstance(event, Gaussian):
        return prv.GaussianMechanism(event.noise_multiplier)
    if isinstance(event, Laplace):
        return prv.LaplaceMechanism(mu=1 / event.scale)
    if isinstance(event, Pure):
        return prv.PureDPMechanism(event.epsilon)
    assert isinstance(event, Approximate)
    return prv.ApproximateDPMechanism(event.epsilon, event.delta)
