"""Updates that need no knowledge of others: nothing, noise, the opposite, too much, one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from atoll import rng
from atoll.core import AdversaryView, Attack
from atoll.tree import Tree

Factor = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class ZeroUpdate(Attack):
    """Send zeros: u = 0. Knows its own update."""

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        return torch.zeros_like(seen.own), state


@dataclass(frozen=True)
class RandomUpdate(Attack):
    """Send noise: u ~ N(0, scale^2), drawn for each attacker (Blanchard et al., 2017). Knows its own update."""

    scale: Factor = 1.0

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        return self.scale * client_noise(key, seen), state


@dataclass(frozen=True)
class SignFlip(Attack):
    """Send the opposite of what was trained: u = -factor own (Li et al., 2019). Knows its own update."""

    factor: Factor = 1.0

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        return -self.factor * seen.own, state


@dataclass(frozen=True)
class ScaledUpdate(Attack):
    """Send too much of what was trained: u = factor own; 1 is honest. Knows its own update."""

    factor: Factor = 10.0

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        return self.factor * seen.own, state


@dataclass(frozen=True)
class SameValue(Attack):
    """Send one value everywhere: u = value (1, ..., 1) (Li et al., 2019). Knows its own update."""

    value: float = 1.0

    def craft(self, seen: AdversaryView, state: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        return torch.full_like(seen.own, self.value), state


def client_noise(key: Tensor, seen: AdversaryView) -> Tensor:
    """Standard normal numbers (M, D), addressed by client: the order of clients does not change them."""
    size = (seen.own.shape[1],)
    base = key.to(seen.own.device)
    return torch.func.vmap(lambda i: rng.normal(rng.fold(base, i), size))(seen.ids).to(seen.own.dtype)


def client_uniform(key: Tensor, seen: AdversaryView) -> Tensor:
    """The same, uniform in [0, 1)."""
    size = (seen.own.shape[1],)
    base = key.to(seen.own.device)
    return torch.func.vmap(lambda i: rng.uniform(rng.fold(base, i), size))(seen.ids).to(seen.own.dtype)
