"""CRFL: the server's model is clipped and made noisy after every round, so that a backdoor can be certified away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Algorithm, Context, Model, Play, Round
from atoll.errors import ConfigError
from atoll.rng import dp
from atoll.rounds.around import RoundAround
from atoll.stats import BackdoorThreat, certified_radius, vote_bounds
from atoll.tree import Tree

CLIPPED = "clipped"  # the model without its last noise, in the state and beside the run


@dataclass(frozen=True, eq=False)
class Certified(RoundAround):
    """A round around another: w min(1, max_norm / |w|) + N(0, std^2) in place of the new model (Xie et al., ICML 2021).

    The record has the radius that a vote of `votes` noisy models could certify at most for an attack in the first
    round: if all of them agree. Votes are drawn around the model before its noise, which is measured and saved beside
    the other (`clipped.pt`); `vote_counts` has them, `atoll certify` those on the test data.
    """

    max_norm: float
    std: float
    threat: BackdoorThreat
    votes: int
    alpha: float

    @classmethod
    def around(cls, inner: Round, algorithm: Algorithm, *numbers: float, threat: BackdoorThreat) -> Certified:
        """`numbers`: max_norm, std, votes, alpha. A ConfigError where no server holds a whole model."""
        if inner.traits().per_client or algorithm.traits().partial:
            raise ConfigError(
                "server.crfl: clips the server's model, and here no server holds a whole one. Leave it out."
            )
        max_norm, std, votes, alpha = numbers
        return cls(inner, max_norm, std, threat, int(votes), alpha)

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        state = self.inner.init(ctx, model, key)
        return {**state, CLIPPED: self.inner.model(state)}

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        before = state[CLIPPED]
        state, outcome = yield from self.inner.run(ctx, tree.without(state, (CLIPPED,)), key)
        if not outcome.changed:
            return {**state, CLIPPED: before}, outcome
        params = state["server"]["params"]
        length = tree.norm(params)
        clipped = tree.scale(params, (self.max_norm / length.clamp(min=1e-30)).clamp(max=1.0))
        noisy = dp.add_server_noise(clipped, rng.fold_name(key, "crfl"), dp.normal, self.std)
        bounds = vote_bounds(self.votes, 0, self.votes, self.alpha)
        radius = certified_radius(*bounds, self.max_norm, self.std, ctx.number, self.threat)
        said = {"crfl": {"norm": length, "radius": torch.tensor(radius)}}
        server = {**state["server"], "params": noisy}
        without_noise = {**self.inner.model(state), "params": clipped}
        state = {**state, "server": server, CLIPPED: without_noise}
        return state, replace(outcome, diagnostics={**outcome.diagnostics, **said})

    def beside(self, state: Tree) -> dict[str, Model]:
        return {**self.inner.beside(state), CLIPPED: state[CLIPPED]}


def vote_counts(
    predict: Callable[[Tree], Tensor], params: Tree, std: float, votes: int, classes: int, key: Tensor
) -> Tensor:
    """(E, K): how many of so many noisy models give each example each class.

    `predict`: the classes (E,) that a model with these parameters gives to the examples.
    """
    drawn = (predict(dp.add_noise(params, rng.fold(key, i), dp.normal, std)) for i in range(votes))
    counts: Tensor = sum(torch.nn.functional.one_hot(one, classes) for one in drawn)  # type: ignore[assignment]
    return counts
