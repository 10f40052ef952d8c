"""Rényi differential privacy (Mironov, 2017), over dp-accounting. Takes most events; not the tightest."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from atoll.privacy.accountant import Parts, delta_of, epsilon_of, supported_terms
from atoll.privacy.composition import Term, flatten
from atoll.privacy.events import (
    Approximate,
    DistributedDiscreteGaussian,
    DistributedSkellam,
    Event,
    Gaussian,
    Laplace,
    Pure,
)

if TYPE_CHECKING:
    import numpy as np

    Orders = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Rdp:
    """Orders of dp-accounting and some below and above; to (epsilon, delta) by Canonne, Kamath and Steinke (2020)."""

    name: str = "rdp"

    def supports(self, event: Event) -> str | None:
        for term in flatten(event).terms:
            if term.rate is not None and not isinstance(term.event, Gaussian):
                return f"no bound for Poisson-sampled {type(term.event).__name__}. Use accountant = 'pld'."
        return None

    def epsilon(self, event: Event, delta: float) -> float:
        return epsilon_of(supported_terms(self, event), delta, _epsilon)

    def delta(self, event: Event, epsilon: float) -> float:
        return delta_of(supported_terms(self, event), epsilon, _delta)


def _epsilon(terms: Parts, delta: float) -> float:
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    left = delta - _approximate_delta(terms)
    if left <= 0:
        return math.inf
    orders = _orders()
    return min(_pure_epsilon(terms), float(rdp.compute_epsilon(orders, divergences(terms, orders), left)[0]))


def _delta(terms: Parts, epsilon: float) -> float:
    from dp_accounting.rdp import rdp_privacy_accountant as rdp

    orders = _orders()
    rdp_values = divergences(terms, orders).clip(min=1e-15)  # of less the library takes the logarithm of 0
    return float(rdp.compute_delta(orders, rdp_values, epsilon)[0]) + _approximate_delta(terms)


def _approximate_delta(terms: Parts) -> float:
    """The delta that approximate mechanisms may spend before anything is promised."""
    return sum(t.count * t.event.delta for t in terms if isinstance(t.event, Approximate))


def _pure_epsilon(terms: Parts) -> float:
    """The epsilons added up, where every part has one at delta 0 (or at the delta lost already)."""
    return sum(t.count * _pure_epsilon_of(t) for t in terms)


def _pure_epsilon_of(term: Term) -> float:
    if isinstance(term.event, Pure | Approximate):
        return term.event.epsilon
    return 1 / term.event.scale if isinstance(term.event, Laplace) else math.inf


def _orders() -> Orders:
    import numpy as np

    near = [1.02, 1.05, *(1 + x / 10 for x in range(1, 100))]
    return np.array([*near, *range(11, 64), 72, 80, 96, 112, 128, 192, 256, 512, 1024], dtype=float)


def divergences(terms: Parts, orders: Orders) -> Orders:
    """The Rényi divergence of all terms together at every order; infinite where it cannot be told."""
    import numpy as np

    total = np.zeros_like(orders)
    for term in terms:
        total += _divergences_of(term, orders)
    # The library takes a negative one, which only rounding can make, as "costs nothing".
    return np.where(np.isfinite(total) & (total >= 0), total, np.inf)


def _divergences_of(term: Term, orders: Orders) -> Orders:
    import numpy as np

    event = term.event
    if isinstance(event, Gaussian | Laplace):
        return _of_library(term, orders)
    if isinstance(event, Pure | Approximate):
        return term.count * np.array([randomised_response(event.epsilon, a) for a in orders])
    if isinstance(event, DistributedDiscreteGaussian):
        return term.count * discrete_gaussian(event, orders)
    return term.count * skellam(event, np.ceil(orders))


def _of_library(term: Term, orders: Orders) -> Orders:
    return term.count * _round(replace(term, count=1), tuple(orders))


@lru_cache(maxsize=256)
def _round(term: Term, orders: tuple[float, ...]) -> Orders:
    """The divergences of one round, cached: every round of a run asks for them."""
    import dp_accounting as dp
    import numpy as np
    from dp_accounting.rdp import RdpAccountant

    neighbours = dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    event: Any
    if isinstance(term.event, Laplace):
        event = dp.LaplaceDpEvent(term.event.scale)
    else:
        assert isinstance(term.event, Gaussian)
        event = dp.GaussianDpEvent(term.event.noise_multiplier)
    if term.rate is not None:
        event = dp.PoissonSampledDpEvent(term.rate, event)
    elif term.without_replacement is not None:
        neighbours = dp.NeighboringRelation.REPLACE_ONE
        event = dp.SampledWithoutReplacementDpEvent(term.without_replacement[1], term.without_replacement[0], event)
    without_sampling = (
        np.asarray(orders) / (2 * term.event.noise_multiplier**2) if isinstance(term.event, Gaussian) else np.inf
    )
    try:
        with _quiet():  # an order that does not converge is left out, and the others decide
            divergence: Orders = RdpAccountant(orders, neighbours).compose(event, 1).rdp
    except ValueError:  # so much noise that rounding leaves nothing to take a logarithm of
        divergence = np.full(len(orders), np.inf)
    if (
        term.without_replacement is not None
    ):  # whoever is drawn, two cohorts differ by one unit at most: never worse than no sampling
        divergence = np.minimum(divergence, without_sampling)
    return divergence


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's remarks about single orders."""
    log = logging.getLogger("absl")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def randomised_response(epsilon: float, order: float) -> float:
    """The worst of all epsilon-DP mechanisms: log(p^a (1-p)^(1-a) + (1-p)^a p^(1-a)) / (a - 1), p = e^ε / (1 + e^ε)."""
    import numpy as np

    log_p, log_q = -np.logaddexp(0, -epsilon), -np.logaddexp(0, epsilon)
    both = np.logaddexp(order * log_p + (1 - order) * log_q, order * log_q + (1 - order) * log_p)
    return float(min(max(both / (order - 1), 0.0), epsilon))


def discrete_gaussian(event: DistributedDiscreteGaussian, orders: Orders) -> Orders:
    """Kairouz, Liu and Steinke (2021), proposition 14: the sum of the clients' noise is not quite a discrete Gaussian.

    min(a/2z² + τd, a/2 (1/z + τ√d)²) at order a, τ = 10 Σ_{0<k<n} exp(-2π² σ² k / (k + 1)), if σ, that of one of n
    clients, is 1/2 or more. One client has τ = 0 and the divergence of the continuous Gaussian (Canonne et al., 2020).
    """
    import numpy as np

    variance = (event.noise_multiplier * event.l2) ** 2 / event.clients
    if event.clients > 1 and variance < 0.25:
        return np.full_like(orders, np.inf)
    tau = 10 * (event.clients - 1) * math.exp(-(math.pi**2) * variance)  # the first term is the largest
    cost, size = 1 / event.noise_multiplier, event.dimension
    divergence: Orders = np.minimum(orders / 2 * cost**2 + tau * size, orders / 2 * (cost + tau * math.sqrt(size)) ** 2)
    return divergence


def skellam(event: DistributedSkellam, orders: Orders) -> Orders:
    """Agarwal, Kairouz and Liu (2021): a bound at whole orders a > 1, with variance v of the whole noise.

    a l2² / 2v + min(((2a - 1) l2² + 6 l1) / 4v², 3 l1 / 2v)
    """
    import numpy as np

    v = (event.noise_multiplier * event.l2) ** 2
    more = np.minimum(((2 * orders - 1) * event.l2**2 + 6 * event.l1) / (4 * v**2), 3 * event.l1 / (2 * v))
    divergence: Orders = orders * event.l2**2 / (2 * v) + more
    return divergence


class RdpCurve:
    """The Rényi divergences of one event at every order: its cost so many times over is then cheap.

    >>> from atoll.privacy import Composed
    >>> curve = RdpCurve(Gaussian(4.0))
    >>> curve.epsilon(10, 1e-5) == Rdp().epsilon(Composed(((Gaussian(4.0), 10),)), 1e-5)
    True
    """

    def __init__(self, event: Event) -> None:
        account = supported_terms(Rdp(), event)
        self.broken = account.broken is not None
        self.orders = _orders()
        self.rdp = divergences(account.terms, self.orders)

    def epsilon(self, times: int, delta: float) -> float:
        """Of the event, composed `times` times."""
        from dp_accounting.rdp import rdp_privacy_accountant as rdp

        if times == 0:
            return 0.0
        return math.inf if self.broken else float(rdp.compute_epsilon(self.orders, times * self.rdp, delta)[0])
