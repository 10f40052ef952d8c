"""Epidemic learning: every node pushes its model to some others, drawn anew in every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor

from atoll import rng
from atoll.algorithms import model_of
from atoll.core import Context
from atoll.rounds.decentralised.changing_graphs import random_pushes
from atoll.rounds.decentralised.decentralised import Decentralised, MixResult, NodeStep
from atoll.rounds.decentralised.mixing_matrix import MixingMatrix
from atoll.rounds.decentralised.mixing_weights import mixing_of


@dataclass(frozen=True)
class Epidemic(Decentralised):
    """Nodes push their models to `fanout` others, drawn in every round, and average what came (De Vos et al., 2023).

    x_i <- (x_i + delta_i + sum of those received) / (1 + number received): their EL-Local. The mean over nodes is kept
    only on average. EL-Oracle, with as many received as sent, is gossip on random_regular with every = 1.
    """

    title: ClassVar[str] = "epidemic"

    fanout: Annotated[int, Field(ge=1)] = 2

    def matrix(self, nodes: int, number: int, key: Tensor) -> MixingMatrix:
        return mixing_of(random_pushes(rng.fold_name(key, "pushes"), nodes, self.fanout), "uniform")

    def mix(self, ctx: Context, stepped: NodeStep, matrix: MixingMatrix, key: Tensor) -> MixResult:
        state = stepped.after
        mixed = matrix.mix(model_of(state["server"]))
        return MixResult({**state, "server": {**state["server"], **mixed}}, self.bytes_per_message(ctx, state))

    def check_population(self, population: int) -> None:
        random_pushes(rng.key("pushes"), population, self.fanout)

    def facts(self, population: int) -> dict[str, Any]:
        edges = population * self.fanout if population > 1 else 0
        return {"topology": {"nodes": population, "edges": edges, "directed": True, "changes": True}}
