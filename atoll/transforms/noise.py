"""Noise on the sum."""

from dataclasses import dataclass, replace

from torch import Tensor

from atoll import rng, tree
from atoll.core import Spec, Total, Transform, Unsigned
from atoll.core.settings import Found
from atoll.errors import SpecError
from atoll.tree import Tree


@dataclass(frozen=True)
class GaussianNoise(Transform):
    """Normal noise on the sum: standard deviation = multiplier x the most that one client can add to it."""

    multiplier: Unsigned
    bound: Found = float("nan")

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        if spec.l2 is None:
            raise SpecError("gaussian_noise needs bounded updates: put clip_l2 before it.")
        if not spec.equal_weights:
            raise SpecError("gaussian_noise needs equal client weights: put equal_weights before it.")
        if not spec.additive:
            raise SpecError("gaussian_noise protects a sum, but the reducer sees every update: use reducer = 'mean'.")
        if spec.domain != "real":
            raise SpecError("gaussian_noise adds real numbers, but the sum is modular here: put it before that.")
        return replace(self, bound=spec.l2), spec

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        counter = iter(range(len(tree.leaves(total.value))))
        std = self.multiplier * self.bound

        def noisy(x: Tensor) -> Tensor:
            return x + std * rng.normal(rng.fold(key, next(counter)).to(x.device), tuple(x.shape))

        return replace(total, value=tree.map(noisy, total.value)), state
