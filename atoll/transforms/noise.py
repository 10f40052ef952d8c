"""Central differential privacy: noise on the sum, measured by its sensitivity to one client."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from atoll.core import Calibrated, Derived, Limit, Simulated, Spec, Total, Transform, Unsigned
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
class MeasuredNoise(NoisySum, Calibrated, ABC):
    """Noise in proportion to the most that one client can add to the sum."""

    allowed_after_noise: ClassVar[bool] = True  # `bind` refuses, and knows why
    name: ClassVar[str]

    noise_multiplier: Unsigned = float("nan")
    noise_cohort: Clients | None = field(default=None, kw_only=True)
    epsilon: Epsilon | None = field(default=None, kw_only=True)
    delta: Delta | None = field(default=None, kw_only=True)
    sensitivity: Derived = field(default=float("nan"), kw_only=True)

    @abstractmethod
    def mechanism(self) -> Event:
        """What is added, were it of full size."""

    def event(self) -> Event:
        return actual_event(self.name, self.noise_multiplier, self.noise_cohort, self.mechanism())

    def simulates(self) -> Simulated | None:
        return None if self.noise_cohort is None else Simulated(self.mechanism(), self.noise_cohort, self.separation())

    def limit(self) -> Limit:
        return Limit("l2", self.sensitivity)

    def separation(self) -> int:
        """Rounds from one turn of a client to its next that the noise relies on."""
        return 1

    def checked_sensitivity(self, spec: Spec, norm: Literal["l1", "l2"] = "l2") -> float:
        """The most that one client can add to a real sum, or a refusal."""
        check_noise_stated(self.name, self.noise_multiplier, self.epsilon)
        needs_no_noise(spec, self.name)
        needs_real(spec, self.name)
        sensitivity = needs_bound(spec, self.name, norm)
        needs_equal_weights(spec, self.name)
        needs_sum(spec, self.name)
        return sensitivity

    def scale(self, total: Total) -> float | Tensor:
        """Of the noise in this sum: a smaller cohort gets clients / noise_cohort of it."""
        share = 1.0 if self.noise_cohort is None else total.count / self.noise_cohort
        return self.noise_multiplier * self.sensitivity * share


@dataclass(frozen=True)
class GaussianNoise(MeasuredNoise):
    """Normal noise on the sum: standard deviation = noise_multiplier x the most that one client can add to it.

    `epsilon` and `delta` in place of the noise multiplier: the least noise with which the whole run keeps them.
    `noise_cohort` scales the noise by (clients in the sum) / noise_cohort, so that a small cohort trains as noisily as
    that larger one would (Granqvist et al., 2024, appendix C.4). Then the run itself is not private: simulation only.
    """

    name: ClassVar[str] = "gaussian_noise"

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        bound = self.checked_sensitivity(spec)
        bound_one = replace(self, sensitivity=bound, **fixed_denominator(spec))
        return bound_one, replace(spec, noise=self.noise_multiplier * bound)

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        total = self.released(total)
        noisy = dp.add_server_noise(total.value, key, dp.normal, self.scale(total))
        return replace(total, value=noisy), {"signal": signal_norm(total.value)}

    def mechanism(self) -> Event:
        return Gaussian(float(self.noise_multiplier))


@dataclass(frozen=True)
class LaplaceNoise(MeasuredNoise):
    """Laplace noise on the sum: scale = noise_multiplier x the most that one client can add to it in L1.

    One round is (1 / noise_multiplier)-DP (Dwork et al., 2006). The other options are as in gaussian_noise.
    """

    name: ClassVar[str] = "laplace_noise"

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        bound = self.checked_sensitivity(spec, "l1")
        bound_one = replace(self, sensitivity=bound, **fixed_denominator(spec))
        return bound_one, replace(spec, noise=2**0.5 * self.noise_multiplier * bound)

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        total = self.released(total)
        noisy = dp.add_server_noise(total.value, key, dp.laplace, self.scale(total))
        return replace(total, value=noisy), {"signal": signal_norm(total.value)}

    def limit(self) -> Limit:
        return Limit("l1", self.sensitivity)

    def mechanism(self) -> Event:
        return Laplace(float(self.noise_multiplier))


def actual_event(name: str, noise_multiplier: float, noise_cohort: int | None, event: Event) -> Event:
    """The event of the run that is made: rescaled noise and no noise have no guarantee."""
    if noise_cohort is not None:
        return NotPrivate(f"{name}: the noise is that of a cohort of {noise_cohort}, scaled down. Simulation only.")
    return NotPrivate(f"{name}: the noise multiplier is 0, so there is no noise.") if noise_multiplier == 0 else event
