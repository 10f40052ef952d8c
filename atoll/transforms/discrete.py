"""Integer noise for sums of integers: what clients of a secure sum add together."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from torch import Tensor

from atoll import rng, tree
from atoll.core import Spec, Total, Transform, Unsigned
from atoll.core.settings import Derived, Found
from atoll.privacy import DiscreteGaussian as DiscreteGaussianEvent
from atoll.privacy import Event
from atoll.privacy import Skellam as SkellamEvent
from atoll.rng import Words
from atoll.transforms import draws
from atoll.transforms.discrete_sampling import Law, integers, table
from atoll.transforms.noise import WISHES, Epsilon, really
from atoll.transforms.requirements import (
    Delta,
    check_noise,
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
class DiscreteGaussian(Transform):
    """Discrete Gaussian noise on a sum of integers: P(k) ~ exp(-k^2 / 2 s^2), s = multiplier x sensitivity.

    Every client of a secure sum adds its share, of variance s^2 / clients (Canonne et al., 2020; Kairouz, Liu and
    Steinke, 2021). It is drawn here as one: shares add up to it but for a difference that the event is charged for.
    """

    follows_noise: ClassVar[bool] = True  # `bind` refuses, and knows why

    wishes: ClassVar[tuple[str, ...]] = WISHES

    multiplier: Unsigned = _NAN
    epsilon: Epsilon | None = None
    delta: Delta | None = None
    bound: Found = _NAN
    clients: Annotated[int, Derived()] = 0
    size: Annotated[int, Derived()] = 0

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        check_noise("discrete_gaussian", self.multiplier, self.epsilon)
        l2, clients, size = _checked(spec, "discrete_gaussian")
        std = self.multiplier * l2
        if std:
            table("discrete_gaussian", std)  # refuses what cannot be drawn
        return replace(self, bound=l2, clients=clients, size=size), replace(spec, noise=std)

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        return _noisy(total, key, "discrete_gaussian", float(self.multiplier * self.bound)), state

    def event(self) -> Event:
        event = DiscreteGaussianEvent(float(self.multiplier), self.bound, self.clients, self.size)
        return really("discrete_gaussian", self.multiplier, None, event)


@dataclass(frozen=True)
class Skellam(Transform):
    """Skellam noise on a sum of integers: the difference of two Poisson numbers, variance (multiplier x l2)^2.

    Every client of a secure sum adds its share, and shares add up to it exactly (Agarwal, Kairouz and Liu, 2021).
    """

    follows_noise: ClassVar[bool] = True

    wishes: ClassVar[tuple[str, ...]] = WISHES

    multiplier: Unsigned = _NAN
    epsilon: Epsilon | None = None
    delta: Delta | None = None
    bound: Found = _NAN
    l1: Found = _NAN

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        check_noise("skellam", self.multiplier, self.epsilon)
        l2, _, size = _checked(spec, "skellam")
        l1 = min(spec.l1 or math.inf, math.sqrt(size) * l2, l2 * l2)  # of whole numbers, |k| is at most k^2
        std = self.multiplier * l2
        if std:
            table("skellam", std)
        return replace(self, bound=l2, l1=l1), replace(spec, noise=std)

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        return _noisy(total, key, "skellam", float(self.multiplier * self.bound)), state

    def event(self) -> Event:
        return really("skellam", self.multiplier, None, SkellamEvent(float(self.multiplier), self.bound, self.l1))


def _checked(spec: Spec, name: str) -> tuple[float, int, int]:
    """The sensitivity in steps, the clients that share the noise, and the numbers in an update; or a refusal."""
    needs_no_noise(spec, name)
    needs_integers(spec, name)
    l2 = needs_bound(spec, name)
    needs_equal_weights(spec, name)
    needs_sum(spec, name)
    return l2, needs_cohort(spec, name), needs_size(spec, name)


def _noisy(total: Total, key: Tensor, law: Law, std: float) -> Total:
    def draw(key: Tensor, shape: tuple[int, ...], words: Words = rng.bits) -> Tensor:
        return integers(key, shape, law, std, words)

    noise = draws.like(total.value, key, draw, draws.at_hand)
    return replace(total, value=tree.add(total.value, noise))
