"""Fixed point whose step follows from the room that a sum has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from atoll.core import Spec, Transform
from atoll.errors import SpecError
from atoll.transforms.clamped import ClampedFixedPoint
from atoll.transforms.integers import FixedPoint
from atoll.transforms.requirements import needs_bound, needs_cohort, needs_equal_weights, needs_real, needs_size

_NAME = "[secure]'s fixed_point"
_DEVIATIONS = 12  # of noise that a range has room for, by advice: of Laplace's, a number in 20 million is beyond them


@dataclass(frozen=True)
class FixedPointFor(Transform):
    """fixed_point with the finest step, a power of two, at which no sum of the cohort leaves 2^bits.

    clients (range / step + sqrt(numbers)) + 1 <= 2^(bits - 1). Left out, `range` is the bound that updates have. After
    a local randomiser it must be given, and cuts what is beyond it: clients (range / step + 1) + 1 <= 2^(bits - 1).
    """

    named: ClassVar[str] = "fixed_point"
    allowed_after_noise: ClassVar[bool] = True  # `bind` refuses, and knows why

    bits: int
    range: float | None = None
    takes_local_noise: bool = False  # of the protocol: may every vector have noise of its own?

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        if spec.noise is not None and spec.randomised is not None and self.takes_local_noise:
            return self._clamped(spec).bind(spec)
        if spec.noise is not None:
            raise SpecError(
                f"{_NAME} follows noise on real numbers, which a sum of integers does not have. Put fixed_point and "
                "then discrete_gaussian or skellam in the place of that noise: clients of a secure sum share it. Noise "
                "of every client's own (local_laplace, privunit) goes with secure.protocol = 'shuffle'."
            )
        needs_real(spec, _NAME)
        bound = needs_bound(spec, _NAME)
        needs_equal_weights(spec, _NAME)
        return FixedPoint(self._step(bound, needs_cohort(spec, _NAME), needs_size(spec, _NAME))).bind(spec)

    def _clamped(self, spec: Spec) -> ClampedFixedPoint:
        """Of an update with its client's own noise on it."""
        needs_real(spec, _NAME)
        if self.range is None:
            enough = (spec.randomised or 0.0) + _DEVIATIONS * (spec.noise or 0.0)
            raise SpecError(
                f"secure.fixed_point.range: is missing. Every client's own noise has no bound, so that numbers are "
                f"cut to a range, and the file must say which. Use fixed_point = {{ range = {enough:.2g} }}, the bound "
                f"before the noise and {_DEVIATIONS} deviations of it."
            )
        clients = needs_cohort(spec, _NAME)
        step = _power_of_two(self.range / self._room(clients, 1.0))
        self._check_step(step, (spec.randomised or 0.0) + _DEVIATIONS * (spec.noise or 0.0))
        return ClampedFixedPoint(step, self.range)

    def _step(self, bound: float, clients: int, size: int) -> float:
        if self.range is not None and self.range < bound:
            raise SpecError(
                f"secure.fixed_point.range: {self.range:g} is less than {bound:g}, which one number of an update may "
                f"reach: its sum would wrap around. Leave range out, or put clip_l2 with max_norm = {self.range:g} "
                "before it."
            )
        room = self._room(clients, math.sqrt(size), f" with {size:,} numbers each")
        step = _power_of_two((self.range or bound) / room)
        self._check_step(step, bound)
        return step

    def _check_step(self, step: float, most: float) -> None:
        """A range that leaves nothing of an update is a slip of the pen."""
        if self.range is not None and step > most:
            raise SpecError(
                f"secure.fixed_point.range: {self.range:g} makes a step of {step:.4g}, and no number of an update is "
                f"above {most:.4g}: all would be rounded to none or one. Leave range out, or use {most:.2g}."
            )

    def _room(self, clients: int, rounding: float, numbers: str = "") -> float:
        """The steps that one client has, apart from those by which it rounds."""
        room = (2.0 ** (self.bits - 1) - 1) / clients - rounding
        if room < 1:
            needed = 1 + math.ceil(math.log2(clients * (rounding + 1) + 1))
            raise SpecError(
                f"secure.fixed_point.bits: {self.bits} leave no room for the sum of {clients} clients{numbers}, "
                f"rounded at random. Use bits = {needed + 8} (at least {needed})."
            )
        return room


def _power_of_two(least: float) -> float:
    """The smallest that is at least this."""
    return float(2.0 ** math.ceil(math.log2(least)))
