"""Whole numbers: fixed point, and sums that wrap around, as secure aggregation has them.

Integers travel in float64, which holds them exactly up to 2^53.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from atoll import rng, tree
from atoll.core import Positive, Spec, Total, Transform, Update
from atoll.errors import SpecError
from atoll.transforms.requirements import (
    check_number,
    needs_bound,
    needs_cohort,
    needs_equal_weights,
    needs_integers,
    needs_real,
    needs_size,
)
from atoll.tree import Tree
from atoll.wire import Layout

EXACT = 53  # bits that float64 holds
_TAIL = 12.0  # deviations of the noise that a sum has room for: beyond them with probability 1e-32


@dataclass(frozen=True)
class FixedPoint(Transform):
    """Every number as a whole number of steps, rounded up or down at random so that it is right on average.

    floor(x / step + u), u uniform in (0, 1); back again on the sum. Rounding moves each number by less than one step,
    so one client can move the sum by l2 / step + sqrt(numbers), in steps: that is what noise is measured by from here
    on (Kairouz, Liu and Steinke, 2021, without their conditional rounding).
    """

    keeps_zeros: ClassVar[bool] = True

    step: Positive

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        check_number("fixed_point.step", self.step)
        needs_real(spec, "fixed_point")
        l2 = needs_bound(spec, "fixed_point")
        needs_equal_weights(spec, "fixed_point")
        size = needs_size(spec, "fixed_point")
        l1 = None if spec.l1 is None else spec.l1 / self.step + size
        return self, replace(spec, l2=l2 / self.step + math.sqrt(size), l1=l1, domain="integer", step=self.step)

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        counter = iter(range(len(tree.leaves(update.value))))

        def rounded(x: Tensor) -> Tensor:
            u = rng.uniform(rng.fold(key, next(counter)).to(x.device), tuple(x.shape))
            return torch.floor(x.double() / self.step + u)

        return update._replace(value=tree.map(rounded, update.value)), own

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        return replace(total, value=tree.map(lambda x: (x * self.step).float(), total.value)), state


@dataclass(frozen=True)
class SecureSum(Transform):
    """Sums modulo 2^bits, as secure aggregation computes them: the server sees the sum and nothing else.

    Clients send residues; the sum is read as a number between -2^(bits-1) and 2^(bits-1). Refused when built if the
    clients' bounds, with 12 deviations of the noise, could reach beyond that (Bonawitz et al., 2017). No masks
    are made here, since they cancel: [secure] names a protocol that makes them.
    """

    keeps_zeros: ClassVar[bool] = True
    keyed: ClassVar[bool] = False
    allowed_after_noise: ClassVar[bool] = True  # it leaves sums as they are, while they fit

    bits: Annotated[int, Field(ge=2, le=48)] = 32

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        needs_integers(spec, "secure_sum")
        needs_equal_weights(spec, "secure_sum")
        if not spec.additive:
            raise SpecError("secure_sum shows the server nothing but a sum: use reducer = 'mean'.")
        clients = needs_cohort(spec, "secure_sum")
        most = clients * _largest(spec)
        if spec.linf is None:  # else the noise is in it
            most += _TAIL * (spec.noise or 0.0)
        needed = 1 + math.ceil(math.log2(most + 1))
        if needed > self.bits:
            raise SpecError(
                f"secure_sum: a sum may reach {most:.4g} steps, which needs {needed} bits and not {self.bits}. "
                f"Use bits = {needed}, or a larger fixed_point.step."
            )
        if clients * 2.0**self.bits > 2.0**EXACT:
            raise SpecError(
                f"secure_sum: {clients} residues of {self.bits} bits do not add up exactly in {EXACT}. "
                f"Use bits = {int(EXACT - math.log2(clients))} or fewer."
            )
        return self, replace(spec, domain="modular", bits=float(self.bits))

    def layout(self, like: Tree) -> Layout:
        residues = Layout.of(tree.map(lambda x: x.new_zeros(x.shape, dtype=torch.int64), like))
        if self.bits > 32:
            return residues
        return Layout(tuple(replace(part, kind="bits", bits=self.bits) for part in residues.parts))

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return update._replace(value=tree.map(lambda x: torch.remainder(x, 2.0**self.bits), update.value)), own

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        half = 2.0 ** (self.bits - 1)
        centred = tree.map(lambda x: torch.remainder(x + half, 2.0 * half) - half, total.value)
        return replace(total, value=centred), state


def _largest(spec: Spec) -> float:
    """What no number of one client is beyond."""
    return min(needs_bound(spec, "secure_sum"), spec.l1 or math.inf) if spec.linf is None else spec.linf
