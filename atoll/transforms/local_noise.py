"""Local mechanisms: every client's update is private before it leaves, so the server need not be trusted.

Any two updates of a client may stand for each other, so the sensitivity is twice the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Literal

from torch import Tensor

from atoll.core import Derived, Limit, Positive, Simulated, Spec, Total, Transform, Update
from atoll.errors import ConfigError
from atoll.privacy import Approximate, Event, NotPrivate, Pure, gaussian_delta
from atoll.rng import dp
from atoll.transforms.privunit import Cap, cap, privunit
from atoll.transforms.release import NoisySum, fixed_denominator, signal_norm
from atoll.transforms.requirements import (
    Delta,
    check_number,
    needs_bound,
    needs_equal_weights,
    needs_no_noise,
    needs_real,
    needs_size,
    needs_sum,
)
from atoll.tree import Tree

_NAN = float("nan")


@dataclass(frozen=True)
class LocalGaussian(Transform):
    """Normal noise on every client's update, as much as (epsilon, delta) asks for (Balle and Wang, 2018)."""

    allowed_after_noise: ClassVar[bool] = True  # `bind` refuses, and knows why

    epsilon: Positive
    delta: Delta
    std: Derived = _NAN
    sensitivity: Derived = _NAN

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        bound = _checked_bound(spec, "local_gaussian", self.epsilon, "l2")
        std = 2.0 * bound * _deviation("local_gaussian", self.epsilon, self.delta)
        return replace(self, std=std, sensitivity=bound), _after_local_noise(spec, "local_gaussian", bound, std)

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return update._replace(value=dp.add_noise(update.value, key, dp.normal, self.std)), own

    def limit(self) -> Limit:
        return Limit("l2", self.sensitivity)

    def event(self) -> Event:
        return Approximate(float(self.epsilon), self.delta)


@dataclass(frozen=True)
class LocalLaplace(Transform):
    """Laplace noise on every client's update: scale = 2 x its bound in L1 / epsilon (Dwork et al., 2006)."""

    allowed_after_noise: ClassVar[bool] = True

    epsilon: Positive
    scale: Derived = _NAN
    sensitivity: Derived = _NAN

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        bound = _checked_bound(spec, "local_laplace", self.epsilon, "l1")
        scale = 2.0 * bound / self.epsilon
        return replace(self, scale=scale, sensitivity=bound), _after_local_noise(
            spec, "local_laplace", bound, 2**0.5 * scale
        )

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return update._replace(value=dp.add_noise(update.value, key, dp.laplace, self.scale)), own

    def limit(self) -> Limit:
        return Limit("l1", self.sensitivity)

    def event(self) -> Event:
        return Pure(float(self.epsilon))


@dataclass(frozen=True)
class Privunit(Transform):
    """A random vector that leans towards the update: PrivUnitG, epsilon-DP and unbiased (Asi et al., 2022).

    For a unit vector u: a u + w, where w is standard normal across u and a standard normal as well, but above a cut
    with probability p; p and the cut are chosen for the least error with log(p / (1-p)) + log(q / (1-q)) = epsilon,
    q = Phi(cut). Divided by E a it is u on average. A shorter update is first u or -u, u with probability
    (1 + |update| / max_norm) / 2. PrivUnit (Bhowmick et al., 2018) does the same on a sphere.
    """

    allowed_after_noise: ClassVar[bool] = True

    epsilon: Positive
    max_norm: Derived = _NAN
    lean: Derived = _NAN  # p
    above: Derived = _NAN  # 1 - q
    mean: Derived = _NAN  # E a

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        max_norm = _checked_bound(spec, "privunit", self.epsilon, "l2")
        best = cap(float(self.epsilon))
        private = replace(self, max_norm=max_norm, lean=best.lean, above=best.above, mean=best.mean)
        return private, _after_local_noise(spec, "privunit", max_norm, max_norm / best.mean)

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        chosen = Cap(self.lean, self.above, self.mean)
        return update._replace(value=privunit(update.value, self.max_norm, chosen, key)), own

    def limit(self) -> Limit:
        return Limit("l2", self.max_norm)

    def event(self) -> Event:
        return Pure(float(self.epsilon))


@dataclass(frozen=True)
class ApproximateLocal(NoisySum):
    """Normal noise on the sum with the squared error of a local mechanism at every client, at most. Simulation only.

    One draw instead of one for each client (Granqvist et al., 2024): variance of each number = clients x squared error
    of one / numbers. For privunit that is the error at an update of length 0, the largest: at length L it is L^2 less,
    which matters for few numbers and a large epsilon. The run does not have the mechanism's guarantee; it is about as
    accurate as one that does.
    """

    epsilon: Positive
    mechanism: Literal["gaussian", "laplace", "privunit"] = "privunit"
    delta: Delta = 1e-6
    std: Derived = _NAN  # of one client's share in each number

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        needs_sum(spec, "approximate_local")
        bound = _checked_bound(spec, "approximate_local", self.epsilon, "l1" if self.mechanism == "laplace" else "l2")
        std = self._std(bound, spec)
        return replace(self, **({"std": std} | fixed_denominator(spec))), replace(spec, noise=std)

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        total = self.released(total)
        std = self.std * total.count**0.5
        noisy = dp.add_server_noise(total.value, key, dp.normal, std)
        return replace(total, value=noisy), {"signal": signal_norm(total.value)}

    def event(self) -> Event:
        return NotPrivate("approximate_local: the noise of a local mechanism was added to the sum. Simulation only.")

    def simulates(self) -> Simulated:
        epsilon = float(self.epsilon)
        return Simulated(Approximate(epsilon, self.delta) if self.mechanism == "gaussian" else Pure(epsilon))

    def _std(self, bound: float, spec: Spec) -> float:
        if self.mechanism == "laplace":
            return 2**0.5 * 2.0 * bound / self.epsilon
        if self.mechanism == "gaussian":
            return 2.0 * bound * _deviation("approximate_local", self.epsilon, self.delta)
        best = cap(float(self.epsilon))
        return bound * math.sqrt(best.squares(needs_size(spec, "approximate_local"))) / float(best.mean)


def _checked_bound(spec: Spec, name: str, epsilon: float, norm: Literal["l1", "l2"]) -> float:
    """The bound that the noise is measured by, or a refusal. The reducer may look at every update: it is private."""
    check_number(f"{name}.epsilon", epsilon)
    needs_no_noise(spec, name)
    needs_real(spec, name)
    bound = needs_bound(spec, name, norm)
    needs_equal_weights(spec, name)
    return bound


def _after_local_noise(spec: Spec, name: str, bound: float, std: float) -> Spec:
    return replace(spec, l2=None, l1=None, unbounded_because=f"{name} adds noise", noise=std, randomised=bound)


def _deviation(name: str, epsilon: float, delta: float) -> float:
    if not 0 < delta < 1:
        raise ConfigError(f"{name}.delta: must be above 0 and below 1 (got {delta}).")
    return gaussian_deviation(float(epsilon), delta)


@lru_cache(maxsize=64)
def gaussian_deviation(epsilon: float, delta: float) -> float:
    """The least standard deviation for a sensitivity of 1, from above, by bisection.

    >>> round(gaussian_deviation(1.0, 1e-5), 4)
    3.7306
    """
    low, high = 0.0, 1.0
    while gaussian_delta(high, epsilon) > delta:
        low, high = high, 2.0 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, epsilon) > delta else (low, middle)
    return high
