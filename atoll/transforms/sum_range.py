"""Fixed point whose step follows from the room that a sum has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from atoll.core import Spec, Transform
from atoll.errors import SpecError
from atoll.transforms.integers import FixedPoint
from atoll.transforms.requirements import needs_bound, needs_cohort, needs_equal_weights, needs_real, needs_size

_NAME = "[secure]'s fixed_point"


@dataclass(frozen=True)
class FixedPointFor(Transform):
    """fixed_point with the finest step, a power of two, at which no sum of the cohort leaves 2^bits.

    clients (range / step + sqrt(numbers)) + 1 <= 2^(bits - 1). Left out, `range` is the bound that updates have.
    """

    named: ClassVar[str] = "fixed_point"
    allowed_after_noise: ClassVar[bool] = True  # `bind` refuses, and knows why

    bits: int
    range: float | None = None

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        if spec.noise is not None:
            raise SpecError(
                f"{_NAME} follows noise on real numbers, which a sum of integers does not have. Put fixed_point and "
                "then discrete_gaussian or skellam in the place of that noise: clients of a secure sum share it."
            )
        needs_real(spec, _NAME)
        bound = needs_bound(spec, _NAME)
        needs_equal_weights(spec, _NAME)
        return FixedPoint(self._step(bound, needs_cohort(spec, _NAME), needs_size(spec, _NAME))).bind(spec)

    def _step(self, bound: float, clients: int, size: int) -> float:
        if self.range is not None and self.range < bound:
            raise SpecError(
                f"secure.fixed_point.range: {self.range:g} is less than {bound:g}, which one number of an update may "
                f"reach: its sum would wrap around. Leave range out, or put clip_l2 with max_norm = {self.range:g} "
                "before it."
            )
        room = (2.0 ** (self.bits - 1) - 1) / clients - math.sqrt(size)  # steps of one client
        if room < 1:
            needed = 1 + math.ceil(math.log2(clients * (math.sqrt(size) + 1) + 1))
            raise SpecError(
                f"secure.fixed_point.bits: {self.bits} leave no room for the sum of {clients} clients with {size:,} "
                f"numbers each, rounded at random. Use bits = {needed + 8} (at least {needed})."
            )
        return float(2.0 ** math.ceil(math.log2((self.range or bound) / room)))
