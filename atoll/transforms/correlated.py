"""Correlated noise (matrix factorisation): later rounds take back a part of it, so prefix sums are less noisy.

The state is the noise of the past, for a sensitivity of 1; a run that is resumed goes on with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from atoll import tree
from atoll.core import SetByBind, Spec, Total, Transform
from atoll.errors import ConfigError, SpecError
from atoll.privacy import Banded, Event, TreeAggregation, banded
from atoll.rng import dp
from atoll.transforms.noise import Clients, MeasuredNoise
from atoll.transforms.release import fixed_denominator, signal_norm
from atoll.tree import Tree

Constant = Annotated[float, Field(ge=0)]  # the same in every round: the events are of the whole run
DerivedInt = Annotated[int, SetByBind()]
_NAN = float("nan")


@dataclass(frozen=True)
class BandedNoise(MeasuredNoise):
    """Banded matrix factorisation: noise C^-1 z, x_t = (z_t - sum_k c_k x_(t-k)) / c_0 (Choquette-Choo et al., 2023).

    C has `bands` coefficients of length 1, the best for prefix sums over the run. z has deviation noise_multiplier x
    the most that one client can add in one round. Holds if a client waits `bands` rounds for its next turn, which the
    cohort must see to: `cyclic`, or `cyclic_poisson`, which costs less. With `noise_cohort` (see gaussian_noise) the
    run simulates a larger one, in which a client waits `min_separation` rounds (as many as there are bands, unless
    given).
    """

    name: ClassVar[str] = "banded_noise"

    noise_multiplier: Constant = _NAN
    bands: Annotated[int, Field(ge=0)] = 0  # 0: as many as a client waits rounds for its next turn
    min_separation: Clients | None = None
    rounds: DerivedInt = 0
    participation_gap: DerivedInt = 0

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        bound = self.checked_sensitivity(spec)
        participation_gap, rounds = self._participation_gap(spec), needs_rounds(spec, self.name)
        bands = self.bands or min(participation_gap, rounds)
        noise = self.noise_multiplier * bound / banded(rounds, bands)[0]
        terms = {"sensitivity": bound, "rounds": rounds, "participation_gap": participation_gap, "bands": bands}
        return replace(self, **(terms | fixed_denominator(spec))), replace(spec, noise=noise)

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        c = torch.tensor(banded(self.rounds, self.bands), dtype=torch.float64, device=tree.device(like))
        past = torch.zeros((len(c) - 1, tree.count(like)), device=c.device)  # no more than rounds
        return {"coefficients": c, "past": past, **super().init(like)[0]}, {}

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        total, c, past = self.released(total), state["coefficients"].float(), state["past"]
        z = dp.flat_noise(total.value, key, dp.normal, dp.fast_bits)
        x = (z - c[1:] @ past) / c[0]
        recent = torch.cat([x[None], past[:-1]])[: len(past)]
        new = {**state, "past": recent, "signal": signal_norm(total.value)}
        return replace(total, value=dp.add_flat(total.value, self.scale(total) * x)), new

    def separation(self) -> int:
        return self.participation_gap

    def mechanism(self) -> Event:
        return Banded(float(self.noise_multiplier), self.bands, self.participation_gap, self.rounds)

    def _participation_gap(self, spec: Spec) -> int:
        stated = self.noise_cohort is None or self.min_separation is not None
        simulated_gap = self.min_separation if stated or not self.bands else self.bands
        participation_gap = checked_gap(spec, self.name, self.noise_cohort, simulated_gap)
        if participation_gap < self.bands:
            raise SpecError(
                f"banded_noise: {self.bands} bands need a client to wait {self.bands} rounds for its next turn, and "
                f"the cohort sees to {participation_gap}. "
                f"Use cohort.name = 'cyclic_poisson' or 'cyclic' with min_separation = {self.bands}, or fewer bands."
            )
        return participation_gap


@dataclass(frozen=True)
class TreeNoise(MeasuredNoise):
    """Binary tree aggregation: noise on every node of a tree over rounds, log2(t) + 1 of them in a prefix sum.

    Round t completes a node of level j, j the number of ones that t ends in: its fresh noise replaces that of the j
    nodes below it (Kairouz et al., 2021, DP-FTRL; Chan et al., 2011). `restart` begins a new tree every so many rounds.
    The fewer turns a client has, the less it costs: cohort.name = "cyclic". `noise_cohort` and `min_separation` as in
    banded_noise.
    """

    name: ClassVar[str] = "tree_noise"

    noise_multiplier: Constant = _NAN
    restart: Clients | None = None
    min_separation: Clients | None = None
    rounds: DerivedInt = 0
    participation_gap: DerivedInt = 0

    def bind(self, spec: Spec) -> tuple[Transform, Spec]:
        bound, rounds = self.checked_sensitivity(spec), needs_rounds(spec, self.name)
        noise = self.noise_multiplier * bound * (self._levels(rounds) + 1) ** 0.5
        participation_gap = checked_gap(spec, self.name, self.noise_cohort, self.min_separation)
        terms = {"sensitivity": bound, "rounds": rounds, "participation_gap": participation_gap}
        return replace(self, **(terms | fixed_denominator(spec))), replace(spec, noise=noise)

    def init(self, like: Tree) -> tuple[Tree, Tree]:
        levels = self._levels(self.rounds)
        nodes = torch.zeros((levels, tree.count(like)), device=tree.device(like))
        number = torch.zeros((), dtype=torch.int64, device=tree.device(like))
        return {"round": number, "nodes": nodes, **super().init(like)[0]}, {}

    def server(self, total: Total, state: Tree, key: Tensor) -> tuple[Total, Tree]:
        total = self.released(total)
        at = state["round"] if self.restart is None else state["round"] % self.restart
        z = dp.flat_noise(total.value, key, dp.normal, dp.fast_bits)
        # What an earlier tree left on a level is written over before it could be taken away.
        x = z - _below(at, len(state["nodes"])) @ state["nodes"]
        nodes = _carried(at, z, state["nodes"])
        new = {"round": state["round"] + 1, "nodes": nodes, "signal": signal_norm(total.value)}
        return replace(total, value=dp.add_flat(total.value, self.scale(total) * x)), new

    def separation(self) -> int:
        return self.participation_gap

    def mechanism(self) -> Event:
        return TreeAggregation(
            float(self.noise_multiplier), self.rounds, self.participation_gap, restart=self.restart, pattern="cyclic"
        )

    def _levels(self, rounds: int) -> int:
        return math.floor(math.log2(min(rounds, self.restart or rounds))) + 1


def checked_gap(spec: Spec, name: str, noise_cohort: int | None, min_separation: int | None) -> int:
    """Rounds between two turns of a client: what the cohort sees to, or what is said of a simulated one."""
    if min_separation is None:
        return spec.min_separation
    if noise_cohort is None:
        raise ConfigError(f"{name}.min_separation: is that of the cohort. Use cohort.min_separation, or noise_cohort.")
    return min_separation


def needs_rounds(spec: Spec, name: str) -> int:
    """How long the run is, or a refusal."""
    if spec.rounds is None:
        raise SpecError(f"{name} is noise for a whole run and needs to know its rounds: bind it to Spec(rounds = ...).")
    return spec.rounds


def _below(at: Tensor, levels: int) -> Tensor:
    """1 for every level whose node this round's node replaces: `at` ends in that many ones."""
    return ((at + 1) % _powers(at, levels, 1) == 0).float()


def _carried(at: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """The nodes after this round: those below are gone, the new one stands on its level."""
    here = (at + 1) % _powers(at, len(old), 1) == _powers(at, len(old), 0)
    remaining = old * (1.0 - _below(at, len(old)))[:, None]
    return torch.where(here[:, None], new, remaining)


def _powers(at: Tensor, levels: int, more: int) -> Tensor:
    powers: Tensor = 2 ** (torch.arange(levels, device=at.device) + more)
    return powers
