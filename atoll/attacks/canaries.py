"""Canaries: clients planted in a run to see how well their presence can be told from what is released.

Each sends as much as the chain lets through, on one number of the update that is its own. A fair coin says whether it
is in the run at all. Afterwards they are ranked by what was released on their numbers, and guesses are made from the
ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from atoll import rng
from atoll.attacks import canary_sampling as turns
from atoll.attacks import canary_updates
from atoll.attacks.canary_updates import Places
from atoll.attacks.onerun import best_bound
from atoll.core import Chain, Participation, Total, Transform
from atoll.errors import ConfigError
from atoll.privacy import Banded, TreeAggregation
from atoll.tree import Tree

METHOD = "canaries (Steinke, Nasr, Jagielski, 2023)"
SHARES = (16, 6)  # a 16th of the canaries is guessed "in" and as many "out"; or a 6th: fixed before anything is seen
_FILTERED = ("seen", "owed")


@dataclass
class Canaries:
    """Who they are, who is in, and their scores so far. The scores are all that changes over a run."""

    places: Places  # where each writes
    inside: Tensor  # (m,) bool: the coin
    key: Tensor
    score: Tensor  # (m,) float64
    past: Tree = field(default_factory=dict)  # of correlated noise: the last releases, and the last turns
    _turns: Tensor | None = None  # of the round that is being made, as far as an adversary may know them
    _coefficients: Tensor | None = None  # of banded noise

    @classmethod
    def plant(cls, count: int, like: Tree, key: Tensor, device: torch.device | str) -> Canaries:
        """So many canaries for updates like this one."""
        places = canary_updates.places(count, like, rng.fold_name(key, "places"), device)
        inside = rng.bits(rng.fold_name(key, "coin"), (count,)) % 2 == 1
        score = torch.zeros(count, dtype=torch.float64, device=device)
        return cls(places, inside.to(device), key, score)

    def __len__(self) -> int:
        return len(self.inside)

    def contribution(
        self, round: int, how: Participation, layers: Chain, state: Tree, key: Tensor, often: Tensor | None = None
    ) -> Total | None:
        """What the canaries of this round add to the clients' total, before the server's side; None if none came.

        Each passes through the client's side of the chain, with the round's state. `key` is the round's. `often` says
        how often each was drawn (see `turns.drawn`); without it they are drawn by what the sampler says of itself.
        """
        if not layers.events():
            raise ConfigError(
                "privacy.canaries: the chain has no mechanism, so nothing bounds what a canary may send. "
                "Add clip_l2 and gaussian_noise to transform, or leave canaries out."
            )
        if often is None:
            often = turns.sample_from_distribution(how, len(self), round, self.key, rng.fold_name(key, "turns"))
        often = often.to(self.score.device)
        self._expect(often if turns.public(how) else torch.ones_like(often), layers, state)
        which = torch.repeat_interleave(often * self.inside)
        if not len(which):
            return None
        return canary_updates.summed(which, self.places, layers, state, rng.fold_name(key, "client"))

    def observe(self, total: Total, known: Total | None = None) -> None:
        """Score what was released: the total after the server's side.

        `known` is what the clients alone would have released without noise (`without_noise`): an adversary is allowed
        to know everybody else's data, and takes it away.
        """
        seen = self.places.read(total.value)
        if known is not None:
            seen = seen - self.places.read(known.value)
        mine = torch.ones_like(seen) if self._turns is None else self._turns
        if self._coefficients is not None:
            seen, mine = self._filtered(self._coefficients, seen, mine)
        self.score = self.score + mine * seen
        self._turns = None

    def state(self) -> Tree:
        """What a checkpoint must keep; everything else follows from the key."""
        return {"score": self.score, **self.past}

    def at(self, state: Tree) -> Canaries:
        """The same canaries with scores that were kept."""
        past = {k: state[k].to(self.score.device) for k in _FILTERED if k in state}
        return replace(self, score=state["score"].to(self.score.device), past=past, _turns=None, _coefficients=None)

    def first_state(self, chain: Chain, inner: Tree) -> Tree:
        """What `state` is before the first round, for a chain and its state."""
        c = _banded_coefficients(chain, inner)
        if c is None:
            return {"score": self.score}
        return {"score": self.score, **{k: self.score.new_zeros((len(c) - 1, len(self))) for k in _FILTERED}}

    def verdict(self, delta: float, confidence: float = 0.95) -> dict[str, Any]:
        """The largest epsilon that the guesses refute, for the rounds so far."""
        order, m = torch.argsort(self.score, stable=True), len(self)
        inside, tries = self.inside[order], []
        for share in SHARES:
            k = max(1, m // share) if m > 1 else 0
            tries.append((2 * k, int((~inside[:k]).sum() + inside[m - k :].sum())))
        best = best_bound(m, dict.fromkeys(tries), delta, confidence)
        return {
            "method": METHOD,
            "epsilon_lower": best.epsilon,
            "confidence": confidence,
            "delta": delta,
            "canaries": m,
            "guesses": best.guesses,
            "correct": best.correct,
        }

    def _expect(self, mine: Tensor, layers: Chain, state: Tree) -> None:
        """How this round's release is to be read, for the noise that is on it."""
        self._turns, self._coefficients = mine.double(), _banded_coefficients(layers, state)
        if any(isinstance(event, TreeAggregation) for event in layers.simulated_events() or layers.events()):
            self._turns = torch.ones_like(self._turns)  # noise that later rounds take back: everything is added up

    def _filtered(self, c: Tensor, seen: Tensor, mine: Tensor) -> tuple[Tensor, Tensor]:
        """C times the releases and C times the turns: there banded noise is independent, and a match is best."""
        rows = len(c) - 1
        found = []
        for name, x in zip(_FILTERED, (seen, mine), strict=True):
            old = self.past.get(name, x.new_zeros((rows, len(x))))
            all_of = torch.cat([x[None], old])
            found.append(c @ all_of)
            self.past = {**self.past, name: all_of[:rows]}
        return found[0], found[1]


def _banded_coefficients(chain: Chain, state: Tree) -> Tensor | None:
    """Of banded noise, where there is some."""
    for i, transform in enumerate(chain.transforms):
        simulated = transform.simulates()
        if isinstance(simulated.event if simulated else transform.event(), Banded):
            coefficients: Tensor = state[str(i)]["coefficients"].double()
            return coefficients
    return None


def without_noise(layers: Chain) -> Chain:
    """The chain with its mechanisms left out: its server side says what is known of everybody else's updates."""
    return Chain(tuple(Transform() if layer.mechanisms() else layer for layer in layers.transforms))
