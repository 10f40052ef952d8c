"""Central differential privacy: noise on the sum, measured by its sensitivity to one client."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from atoll.core import Calibrated, Derived, Simulated, Spec, Total, Transform, Unsigned
from atoll.privacy import Event, Gaussian, Laplace, NotPrivate
from atoll.rng import dp
from atoll.transforms.release import NoisySum, fixed_denominator, signal_norm
from atoll.transforms.requirements import (
    Delta,
    check_noise_stated,
    needs_bound,
    needs_equal_weights,
    needs_no_noise,
    needs_real,
    needs_sum,
)
from atoll.tree import Tree

Clients = Annotated[int, Field(ge=1)]
Epsilon = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class GaussianNoise(NoisySum, Calibrated):
    """Normal noise on the sum: standard deviation = noise_multiplier x the most that one client can add to it.

    `epsilon` and `delta` in place of the noise multiplier: the least noise with which the whole run keeps them.
    `noise_cohort` scales the noise by (clients in the sum) / noise_cohort, so that a small cohort trains as noisily as
    that larger one would (Granqvist et al., 2024, appendix C.4). Then the run itself is not private: simulation only.
    """

    allowed_after_noise: ClassVar[bool] = True  # `bind` refuses, and knows why

    noise_multiplier: Unsigned = float("nan")
    noise_cohort: Clients | None = None
    epsilon: Epsilon | None = None
    delta: Delta | None = None
    sensitivity: Derived = float("nan")

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        check_noise_stated("gaussian_noise", self.noise_multiplier, self.epsilon)
        bound = checked_sensitivity(spec, "gaussian_noise", "l2")
        bound_one = replace(self, sensitivity=bound, **fixed_denominator(spec))
        return bound_one, replace(spec, noise=self.noise_multiplier * bound)

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        total = self.released(total)
        std = self.noise_multiplier * self.sensitivity * noise_share(total, self.noise_cohort)
        noisy = dp.add_server_noise(total.value, key, dp.normal, std)
        return replace(total, value=noisy), {"signal": signal_norm(total.value)}

    def event(self) -> Event:
        return actual_event(
            "gaussian_noise", self.noise_multiplier, self.noise_cohort, Gaussian(float(self.noise_multiplier))
        )

    def simulates(self) -> Simulated | None:
        cohort = self.noise_cohort
        return None if cohort is None else Simulated(Gaussian(float(self.noise_multiplier)), cohort)


@dataclass(frozen=True)
class LaplaceNoise(NoisySum, Calibrated):
    """Laplace noise on the sum: scale = noise_multiplier x the most that one client can add to it in L1.

    One round is (1 / noise_multiplier)-DP (Dwork et al., 2006). The other options are as in gaussian_noise.
    """

    allowed_after_noise: ClassVar[bool] = True

    noise_multiplier: Unsigned = float("nan")
    noise_cohort: Clients | None = None
    epsilon: Epsilon | None = None
    delta: Delta | None = None
    sensitivity: Derived = float("nan")

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        check_noise_stated("laplace_noise", self.noise_multiplier, self.epsilon)
        bound = checked_sensitivity(spec, "laplace_noise", "l1")
        bound_one = replace(self, sensitivity=bound, **fixed_denominator(spec))
        return bound_one, replace(spec, noise=2**0.5 * self.noise_multiplier * bound)

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        total = self.released(total)
        scale = self.noise_multiplier * self.sensitivity * noise_share(total, self.noise_cohort)
        noisy = dp.add_server_noise(total.value, key, dp.laplace, scale)
        return replace(total, value=noisy), {"signal": signal_norm(total.value)}

    def event(self) -> Event:
        return actual_event(
            "laplace_noise", self.noise_multiplier, self.noise_cohort, Laplace(float(self.noise_multiplier))
        )

    def simulates(self) -> Simulated | None:
        cohort = self.noise_cohort
        return None if cohort is None else Simulated(Laplace(float(self.noise_multiplier)), cohort)


def noise_share(total: Total, noise_cohort: int | None) -> float | Tensor:
    """How much of the noise a smaller cohort gets: clients / noise_cohort; 1 where nothing is rescaled."""
    return 1.0 if noise_cohort is None else total.count / noise_cohort


def actual_event(name: str, noise_multiplier: float, noise_cohort: int | None, event: Event) -> Event:
    """The event of the run that is made: rescaled noise and no noise have no guarantee."""
    if noise_cohort is not None:
        return NotPrivate(f"{name}: the noise is that of a cohort of {noise_cohort}, scaled down. Simulation only.")
    return NotPrivate(f"{name}: the noise multiplier is 0, so there is no noise.") if noise_multiplier == 0 else event


def checked_sensitivity(spec: Spec, name: str, norm: str) -> float:
    """The sensitivity of a real sum, or a refusal."""
    needs_no_noise(spec, name)
    sensitivity = needs_bound(spec, name, "l1" if norm == "l1" else "l2")
    needs_equal_weights(spec, name)
    needs_sum(spec, name)
    needs_real(spec, name)
    return sensitivity
