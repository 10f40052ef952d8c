"""Distributed differential privacy: integer noise that the clients of a secure sum add together."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from torch import Tensor

from atoll import rng, tree
from atoll.core import Calibrated, Derived, Limit, SetByBind, Spec, Total, Transform, Unsigned
from atoll.privacy import DistributedDiscreteGaussian, DistributedSkellam, Event
from atoll.rng import BitSource, dp
from atoll.transforms.discrete_sampling import Distribution, cumulative_table, sample_integers
from atoll.transforms.noise import Epsilon, actual_event
from atoll.transforms.release import NoisySum, fixed_denominator, signal_norm
from atoll.transforms.requirements import (
    Delta,
    check_noise_stated,
    needs_bound,
    needs_cohort,
    needs_equal_weights,
    needs_integers,
    needs_no_noise,
    needs_size,
    needs_sum,
)
from atoll.tree import Tree

_NAN = float("nan")


@dataclass(frozen=True)
class DiscreteGaussian(NoisySum, Calibrated):
    """Discrete Gaussian noise on a sum of integers: P(k) ~ exp(-k^2 / 2 s^2), s = noise_multiplier x sensitivity.

    Every client of a secure sum adds its share, of variance s^2 / clients (Canonne et al., 2020; Kairouz, Liu and
    Steinke, 2021). It is drawn here as one: shares add up to it but for a difference that the event is charged for.
    """

    allowed_after_noise: ClassVar[bool] = True  # `bind` refuses, and knows why

    noise_multiplier: Unsigned = _NAN
    epsilon: Epsilon | None = None
    delta: Delta | None = None
    sensitivity: Derived = _NAN
    clients: Annotated[int, SetByBind()] = 0
    size: Annotated[int, SetByBind()] = 0

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        check_noise_stated("discrete_gaussian", self.noise_multiplier, self.epsilon)
        l2, clients, size = _checked_sensitivity(spec, "discrete_gaussian")
        std = self.noise_multiplier * l2
        if std:
            cumulative_table("discrete_gaussian", std)  # refuses what cannot be drawn
        terms = {"sensitivity": l2, "clients": clients, "size": size}
        return replace(self, **(terms | fixed_denominator(spec))), replace(spec, noise=std)

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        total, std = self.released(total), float(self.noise_multiplier * self.sensitivity)
        return _add_integer_noise(total, key, "discrete_gaussian", std), {"signal": signal_norm(total.value)}

    def limit(self) -> Limit:
        return Limit("l2", self.sensitivity)

    def event(self) -> Event:
        event = DistributedDiscreteGaussian(float(self.noise_multiplier), self.sensitivity, self.clients, self.size)
        return actual_event("discrete_gaussian", self.noise_multiplier, None, event)


@dataclass(frozen=True)
class Skellam(NoisySum, Calibrated):
    """Skellam noise on a sum of integers: the difference of two Poisson numbers, variance (noise_multiplier x l2)^2.

    Every client of a secure sum adds its share, and shares add up to it exactly (Agarwal, Kairouz and Liu, 2021).
    """

    allowed_after_noise: ClassVar[bool] = True  # `bind` refuses, and knows why

    noise_multiplier: Unsigned = _NAN
    epsilon: Epsilon | None = None
    delta: Delta | None = None
    sensitivity: Derived = _NAN
    l1: Derived = _NAN

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        check_noise_stated("skellam", self.noise_multiplier, self.epsilon)
        l2, _, size = _checked_sensitivity(spec, "skellam")
        l1 = min(spec.l1 or math.inf, math.sqrt(size) * l2, l2 * l2)  # of whole numbers, |k| is at most k^2
        std = self.noise_multiplier * l2
        if std:
            cumulative_table("skellam", std)
        return replace(self, sensitivity=l2, l1=l1, **fixed_denominator(spec)), replace(spec, noise=std)

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        total, std = self.released(total), float(self.noise_multiplier * self.sensitivity)
        return _add_integer_noise(total, key, "skellam", std), {"signal": signal_norm(total.value)}

    def limit(self) -> Limit:
        return Limit("l2", self.sensitivity)

    def event(self) -> Event:
        return actual_event(
            "skellam",
            self.noise_multiplier,
            None,
            DistributedSkellam(float(self.noise_multiplier), self.sensitivity, self.l1),
        )


def _checked_sensitivity(spec: Spec, name: str) -> tuple[float, int, int]:
    """The sensitivity in steps, the clients that share the noise, and the numbers in an update; or a refusal."""
    needs_no_noise(spec, name)
    needs_integers(spec, name)
    l2 = needs_bound(spec, name)
    needs_equal_weights(spec, name)
    needs_sum(spec, name)
    return l2, needs_cohort(spec, name), needs_size(spec, name)


def _add_integer_noise(total: Total, key: Tensor, distribution: Distribution, std: float) -> Total:
    def draw(key: Tensor, shape: tuple[int, ...], source: BitSource = rng.bits) -> Tensor:
        return sample_integers(key, shape, distribution, std, source)

    noise = dp.noise_like(total.value, key, draw, dp.fast_bits)
    return replace(total, value=tree.add(total.value, noise))
