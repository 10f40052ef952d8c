"""An exponential moving average of the server's model, kept beside it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import tree
from atoll.core import Algorithm, Context, Model, Play, Round
from atoll.errors import ConfigError
from atoll.rounds.around import RoundAround
from atoll.tree import Tree

NAME = "ema"


@dataclass(frozen=True, eq=False)
class Averaged(RoundAround):
    """A round around another: average += (1 - d) (model - average) after every change of the server's model.

    d = min(decay, (1 + t) / (10 + t)) with t the rounds before, so that the first model is soon forgotten (TensorFlow's
    rule; pfl-research keeps d = decay). Clients never see it, so that the model is the same with and without.
    """

    decay: float

    @classmethod
    def around(cls, inner: Round, decay: float, algorithm: Algorithm) -> Averaged:
        """A ConfigError where no server holds a whole model."""
        if inner.traits().per_client or algorithm.traits().partial:
            raise ConfigError(
                "server.ema: averages the server's model over rounds, and here no server holds a whole one. "
                "Leave it out."
            )
        return cls(inner, decay)

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        state = self.inner.init(ctx, model, key)
        return {**state, NAME: self.inner.model(state)}

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        average = state[NAME]
        state, outcome = yield from self.inner.run(ctx, tree.without(state, (NAME,)), key)
        if outcome.changed:
            decay = min(self.decay, (1 + ctx.number) / (10 + ctx.number))
            average = tree.map(lambda a, x: _step(a, x, 1 - decay), average, self.inner.model(state))
        return {**state, NAME: average}, outcome

    def beside(self, state: Tree) -> dict[str, Model]:
        return {**self.inner.beside(state), NAME: state[NAME]}


def _step(average: Tensor, new: Tensor, share: float) -> Tensor:
    """What counts (BatchNorm's batches) is not averaged."""
    return torch.lerp(average, new, share) if new.is_floating_point() else new
