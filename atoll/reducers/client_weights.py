"""The weighted mean with weights of one's own beside those of the algorithm."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.core import Info, Positive, Reducer, Spec, Total, Update
from atoll.errors import ConfigError
from atoll.reducers.mean import Mean
from atoll.tree import Tree

_MEAN = Mean()


def client_weights(
    weights: dict[str, Positive] | list[Positive], population: int, client_names: Sequence[str] = ()
) -> Reducer[Total]:
    """The weighted mean, in which a client counts so many times as much as it would: {"St. Mary" = 2.0}, or a list.

    Clients go by name or number; those that are not named count as ever. With equal_weights these are the weights.
    """
    if isinstance(weights, list):
        if len(weights) != population:
            raise ConfigError(f"reducer.weights: {len(weights)} for {population} clients. Give each one, or name some.")
        return ScaledMean(torch.tensor(weights))
    numbers = {str(i): i for i in range(population)} | {name: i for i, name in enumerate(client_names)}
    unknown = [name for name in weights if name not in numbers]
    if unknown:
        known = f"{', '.join(client_names[:8])}, or " if client_names else ""
        raise ConfigError(f"reducer.weights: there is no client {unknown[0]!r}. Use {known}0 to {population - 1}.")
    factors = torch.ones(population)
    for name, weight in weights.items():
        factors[numbers[name]] = weight
    return ScaledMean(factors)


@dataclass(frozen=True, eq=False)
class ScaledMean(Reducer[Total]):
    """The mean over clients k of f_k w_k u_k, over the sum of f_k w_k."""

    factors: Tensor  # (N,) for all clients

    def spec(self) -> Spec:
        return Spec(additive=False)  # one client may move the sum further than any bound on its update says

    def zero(self, like: Tree) -> Total:
        return _MEAN.zero(like)

    def lift(self, updates: Update, info: Info, key: Tensor) -> Total:
        return _MEAN.lift(self._weighted(updates, info), info, key)

    def lift_scaled(self, updates: Update, factors: Tree, info: Info, key: Tensor) -> Total:
        return _MEAN.lift_scaled(self._weighted(updates, info), factors, info, key)

    def merge(self, a: Total, b: Total) -> Total:
        return _MEAN.merge(a, b)

    def finish(self, partial: Total, state: Tree, key: Tensor) -> tuple[Total, Tree, Tree]:
        return _MEAN.finish(partial, state, key)

    def _weighted(self, updates: Update, info: Info) -> Update:
        own = self.factors[info.id.cpu()].to(updates.weight)
        return updates._replace(weight=updates.weight * own)
