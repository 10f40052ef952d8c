"""Noise without the guarantee that its name suggests, as published; and what it does guarantee."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from atoll.core import Positive, Spec, Total, Transform, Unsigned, Update
from atoll.errors import ConfigError
from atoll.privacy import Approximate, Event, NotPrivate, gaussian_epsilon
from atoll.rng import dp
from atoll.transforms.clip import ClipL2
from atoll.transforms.release import NoisySum, fixed_denominator, signal_norm
from atoll.transforms.requirements import Delta, check_number, needs_equal_weights, needs_no_noise, needs_real
from atoll.tree import Tree

Whole = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class WeakDp(NoisySum):
    """Clip, and add a little normal noise of deviation `std` to the mean: a defence, not a privacy guarantee.

    Against backdoors (Sun et al., 2019, "weak differential privacy", std 0.025). Too little noise for any epsilon
    worth the name, so it has none.
    """

    allowed_after_noise: ClassVar[bool] = False  # it clips
    keeps_zeros: ClassVar[bool] = True
    keyed: ClassVar[bool] = False
    keeps_packing: ClassVar[bool] = True

    max_norm: Positive
    std: Unsigned = 0.025

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        check_number("weak_dp.std", self.std, zero=True)
        needs_no_noise(spec, "weak_dp")
        _, clipped = ClipL2(self.max_norm).bind(spec)
        return replace(self, **fixed_denominator(spec)), replace(clipped, noise=self.std)

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        return ClipL2(self.max_norm).client(update, state, own, key)

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        total = self.released(total)
        noisy = dp.add_server_noise(total.value, key, dp.normal, self.std * total.weight)
        return replace(total, value=noisy), {"signal": signal_norm(total.value)}

    def event(self) -> Event:
        return NotPrivate("weak_dp: its noise is a defence against backdoors and is not measured for privacy.")


@dataclass(frozen=True)
class Nbafl(Transform):
    """NbAFL: clients clip and add normal noise before they send, the server adds more (Wei et al., 2020).

    sigma_up = c L s / epsilon on every update, s = 2 max_norm / examples, c = sqrt(2 ln(1.25 / delta)); on the mean
    sigma_down = c s sqrt(T^2 - L^2 N) / (N epsilon) where T > L sqrt(N), with L = exposures, T = rounds, N = clients.

    The paper takes s for one example among `examples`. That would hold for a mean over examples; a trained update is
    none, so its epsilon is not earned. What is certain: any two updates of a client are at most 2 max_norm apart, so
    one upload is a local Gaussian mechanism of deviation sigma_up over 2 max_norm. The event says that, for the whole
    client.
    """

    max_norm: Positive
    epsilon: Positive
    delta: Delta
    examples: Whole
    rounds: Whole
    clients: Whole
    exposures: Whole = 1

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        check_number("nbafl.epsilon", self.epsilon)
        if not 0 < self.delta < 1:
            raise ConfigError(f"nbafl.delta: must be above 0 and below 1 (got {self.delta}).")
        needs_no_noise(spec, "nbafl")
        needs_equal_weights(spec, "nbafl")
        needs_real(spec, "nbafl")
        ClipL2(self.max_norm).bind(spec)
        return self, replace(spec, l2=None, l1=None, unbounded_because="nbafl adds noise", noise=self.up())

    def client(self, update: Update, state: Tree, own: Tree, key: Tensor) -> tuple[Update, Tree]:
        update, own = ClipL2(self.max_norm).client(update, state, own, key)
        return update._replace(value=dp.add_noise(update.value, key, dp.normal, self.up())), own

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        return replace(total, value=dp.add_server_noise(total.value, key, dp.normal, self.down() * total.weight)), state

    def event(self) -> Event:
        noise_multiplier = self.exposures * self._c() / (self.examples * self.epsilon)
        return Approximate(max(1e-9, gaussian_epsilon(float(noise_multiplier), self.delta)), self.delta)

    def up(self) -> float:
        """The deviation of a client's noise on each number of its update."""
        return self.exposures * self._unit()

    def down(self) -> float:
        """The deviation of the server's noise on each number of the mean."""
        spare = self.rounds**2 - self.exposures**2 * self.clients
        return self._unit() * math.sqrt(max(0, spare)) / self.clients

    def _unit(self) -> float:
        return self._c() * 2.0 * self.max_norm / (self.examples * self.epsilon)

    def _c(self) -> float:
        return math.sqrt(2.0 * math.log(1.25 / self.delta))
