"""What a round does besides, where noise on the sum makes it private."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.attacks import Canaries, without_noise
from atoll.core import Chain, Participation, Spec, Total
from atoll.tree import Tree


@dataclass(frozen=True)
class Planted:
    """Canaries in one round: who they are, and how often each was drawn by the run's own sampler."""

    canaries: Canaries
    round: int
    how: Participation
    often: Tensor


@dataclass(frozen=True)
class NoisySum:
    """A noisy sum is divided by how many clients were to come, since how many came is private too.

    For the same reason a round to which nobody came adds its noise like any other.
    """

    zeros: Tree  # in the shape of a sum, as it arrives at the server
    expected: float | None  # clients in a round, on average; None where that is not fixed but told, by a trace
    measured: bool = True  # can the length of a sum be told? Not where it wraps around
    planted: Planted | None = None

    @classmethod
    def of(cls, spec: Spec, how: Participation, zeros: Tree) -> NoisySum | None:
        """None for a chain that puts no noise on the sum."""
        if spec.noise is None or spec.l2 is None or not (spec.equal_weights and spec.additive):
            return None
        return cls(zeros, how.expected, spec.domain != "modular")

    def told(self, clients: int) -> NoisySum:
        """The same for a round to which so many were to come, where that is public: who is left out still counts."""
        return replace(self, expected=float(clients)) if self.expected is None and clients else self

    def sum(self, total: Total | None) -> Total | None:
        """The sum before noise; of nobody, where nobody came."""
        if total is not None or self.expected is None:
            return total
        nobody = torch.zeros((), device=tree.leaves(self.zeros)[0].device)
        return Total(self.zeros, nobody, nobody)

    def signal(self, total: Total) -> Tensor | None:
        """How long the sum is before noise."""
        if not self.measured:
            return None
        parts = [x if x.is_floating_point() else x.double() for x in tree.leaves(total.value)]
        return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(parts, 2, torch.float64)))  # type: ignore[no-any-return]

    def server(self, layers: Chain, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        """The server's side of the layers, which do not learn how many came; canaries are in the sum, if there are."""
        total, key_here = self._shared(total), rng.fold_name(key, "server")
        if self.planted is None:
            return layers.server(total, state, key_here)
        canaries, there = self.planted.canaries, self.planted
        more = canaries.contribution(there.round, there.how, layers, state, rng.fold_name(key, "canaries"), there.often)
        whole = total if more is None else replace(total, value=tree.add(total.value, more.value))
        after, kept = layers.server(whole, state, key_here)
        known, _ = without_noise(layers).server(total, state, key_here)
        canaries.observe(after, known)
        return after, kept

    def _shared(self, total: Total) -> Total:
        """The sum, over the clients that were to come."""
        if self.expected is None:
            return total
        number: Any = torch.full_like(total.weight, self.expected)
        return replace(total, weight=number, count=number)
