"""CRFL: the server's model is clipped and made noisy after every round, so that a backdoor can be certified away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Algorithm, Context, Play, Round
from atoll.errors import ConfigError
from atoll.rng import dp
from atoll.rounds.around import RoundAround
from atoll.stats import BackdoorThreat, certified_radius, vote_bounds
from atoll.tree import Tree


@dataclass(frozen=True, eq=False)
class Certified(RoundAround):
    """A round around another: w min(1, max_norm / |w|) + N(0, std^2) in place of the new model (Xie et al., ICML 2021).

    The record has the radius that a vote of `votes` noisy models could certify at most for an attack in the first
    round: if all of them agree. `smoothed_votes` has the votes on examples of one's own.
    """

    max_norm: float
    std: float
    threat: BackdoorThreat
    votes: int
    alpha: float

    @classmethod
    def around(cls, inner: Round, algorithm: Algorithm, *numbers: float, threat: BackdoorThreat) -> Certified:
        """`numbers`: max_norm, std, votes, alpha. A ConfigError where no server holds a whole model."""
        if inner.per_client or algorithm.traits().partial:
            raise ConfigError(
                "server.crfl: clips the server's model, and here no server holds a whole one. Leave it out."
            )
        max_norm, std, votes, alpha = numbers
        return cls(inner, max_norm, std, threat, int(votes), alpha)

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        state, outcome = yield from self.inner.run(ctx, state, key)
        if not outcome.changed:
            return state, outcome
        params = state["server"]["params"]
        length = tree.norm(params)
        clipped = tree.scale(params, (self.max_norm / length.clamp(min=1e-30)).clamp(max=1.0))
        noisy = dp.add_server_noise(clipped, rng.fold_name(key, "crfl"), dp.normal, self.std)
        bounds = vote_bounds(self.votes, 0, self.votes, self.alpha)
        radius = certified_radius(*bounds, self.max_norm, self.std, ctx.number, self.threat)
        said = {"crfl": {"norm": length, "radius": torch.tensor(radius)}}
        server = {**state["server"], "params": noisy}
        return {**state, "server": server}, replace(outcome, diagnostics={**outcome.diagnostics, **said})


def smoothed_votes(predict: Callable[[Tree], Tensor], params: Tree, std: float, votes: int, key: Tensor) -> Tensor:
    """(E, 2): how many of so many noisy models give each example its most frequent class, and its second.

    `predict`: the classes (E,) that a model with these parameters gives to the examples.
    """
    drawn = [predict(dp.add_noise(params, rng.fold(key, i), dp.normal, std)) for i in range(votes)]
    classes = torch.stack(drawn)
    most = max(2, int(classes.max()) + 1)
    counts = torch.nn.functional.one_hot(classes, most).sum(0)
    return counts.sort(1, descending=True).values[:, :2]
