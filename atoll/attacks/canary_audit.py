"""Canaries as a transform around a chain: they join the sum before the noise, and look at what is released after it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.attacks import canary_sampling
from atoll.attacks.canaries import Canaries, without_noise
from atoll.core import Chain, Participation, Spec, Total, Transform
from atoll.data import Sampler
from atoll.tree import Tree


@dataclass(frozen=True, eq=False)
class CanaryAudit(Transform):
    """One round's chain with canaries around it. Clients never see it; scores are its state, and checkpoint as such."""

    inner: Chain
    canaries: Canaries
    round: int
    participation: Participation
    often: Tensor  # how often each canary was drawn by the run's own sampler
    key: Tensor  # the round's

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        inner, spec = self.inner.bind(spec)
        return replace(self, inner=inner), spec

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        inner, own = self.inner.init(like)
        state = {"transforms": inner, "canaries": self.canaries.first_state(self.inner, inner)}
        return {**state, "signal": _length(tree.zeros_like(like))}, own

    def client_view(self, state: Tree) -> Tree:
        return self.inner.client_view(state["transforms"])

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        """The inner chain on the sum of clients and canaries; what clients alone would have released is known."""
        canaries, inner = self.canaries.at(state["canaries"]), state["transforms"]
        planted = canaries.contribution(
            self.round, self.participation, self.inner, inner, rng.fold_name(self.key, "canaries"), self.often
        )
        whole = total if planted is None else replace(total, value=tree.add(total.value, planted.value))
        after, new = self.inner.server(whole, inner, key)
        known, _ = without_noise(self.inner).server(total, inner, key)
        canaries.observe(after, known)
        return after, {"transforms": new, "canaries": canaries.state(), "signal": _length(total.value)}

    def releases(self, invited: int) -> bool:
        return self.inner.releases(invited)

    def mechanisms(self) -> list[Transform]:
        return self.inner.mechanisms()

    def diagnostics(self, state: Tree) -> Tree:
        """The signal is that of the clients: canaries are no part of what is learned."""
        inner = self.inner.diagnostics(state["transforms"])
        return {**inner, **({"signal": state["signal"]} if "signal" in inner else {})}


def _length(value: Tree) -> Tensor:
    lengths = [torch.linalg.vector_norm(x, dtype=torch.float64) for x in tree.leaves(value)]
    return torch.linalg.vector_norm(torch.stack(lengths))  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Planted:
    """The canaries of one run, and how they are drawn: as a federation of the same size would be."""

    canaries: Canaries
    sampler: Sampler
    population: int
    seed: int

    @classmethod
    def plant(
        cls, count: int, like: Tree, sampler: Sampler, population: int, seed: int, device: torch.device
    ) -> Planted:
        """So many canaries for updates like this one."""
        return cls(Canaries.plant(count, like, rng.key(seed, "canaries"), device), sampler, population, seed)

    def around(self, chain: Chain, number: int, participation: Participation) -> CanaryAudit:
        """The chain of round `number` with the canaries that take part in it."""
        run = rng.key(self.seed, "cohort")
        often = canary_sampling.drawn(self.sampler, self.population, len(self.canaries), number, run)
        return CanaryAudit(chain, self.canaries, number, participation, often, rng.key(self.seed, "round", number))

    def verdict(self, state: Tree, delta: float) -> dict[str, Any]:
        """The largest epsilon that the guesses refute, from the state after some rounds."""
        return self.canaries.at(state["canaries"]).verdict(delta)
