"""No server: every node runs the same client program, then averages with its neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.func import vmap

from atoll import rng, tree
from atoll.algorithms.local import model_of
from atoll.core import Algorithm, Cohort, Job, Model, Result, Total
from atoll.errors import ConfigError
from atoll.reducers import Keep
from atoll.rounds.context import Parts, clients_key
from atoll.rounds.graphs import GraphName, adjacency, mixing
from atoll.tree import Tree

_KEEP = Keep()


def gossip_round(
    parts: Parts, cohort: Cohort, servers: Tree, state: Tree, weights: Tensor, key: Tensor
) -> tuple[Tree, Tree, Result]:
    """Every node of the cohort trains from its own model and applies its own update; then all mix."""
    here = cohort.id.to(weights.device)
    sent = vmap(parts.now.send)(tree.rows(servers, here))
    job = Job(
        parts.algorithm,
        parts.chain,
        _KEEP,
        parts.settings,
        sent,
        parts.chain.client_view(state),
        cohort,
        parts.memory,
        clients_key(key),
        each=True,
    )
    result = parts.engine.run(job)
    if result.total is not None:
        servers = _applied(parts.now, servers, here[result.order.to(here.device)], result.total.updates)
    mixed = tree.map(lambda x: torch.einsum("ij,j...->i...", weights, x), model_of(servers))
    return {**servers, **mixed}, state, result


def _applied(now: Algorithm, servers: Tree, ids: Tensor, updates: tuple[Tree, Tensor]) -> Tree:
    def alone(server: Tree, value: Tree, weight: Tensor) -> Tree:
        one = torch.ones_like(weight)
        some = torch.where(weight > 0, weight, one)  # a node without examples stays where it is
        return now.apply(server, Total(tree.scale(value, weight), some, one))

    new = vmap(alone)(tree.rows(servers, ids), *updates)
    return tree.map(lambda old, x: old.index_copy(0, ids, x), servers, new)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Gossip:
    """No server: nodes train, then average with their neighbours in a graph (Lian et al., 2017)."""

    graph: GraphName = "ring"
    probability: Annotated[float, Field(ge=0, le=1)] = 0.1

    def init(self, algorithm: Algorithm, model: Model, population: int) -> Tree:
        """Every node's own server state; all start alike."""
        inner = getattr(algorithm, "inner", algorithm)
        if getattr(inner, "population", None) is not None:
            raise ConfigError(
                f"round.name: gossip has no server to keep what {type(inner).__name__} keeps there. "
                "Use round.name = 'central', or an algorithm such as fedavg or fedprox."
            )
        return tree.map(torch.clone, tree.stack(algorithm.init(model), population))  # type: ignore[no-any-return]

    def run(self, parts: Parts, cohort: Cohort, server: Tree, state: Tree, key: Tensor) -> tuple[Tree, Tree, Result]:
        """One round. The graph is the same in every round."""
        first = tree.leaves(server)[0]
        neighbours = adjacency(self.graph, len(first), self.probability, rng.key("graph"))
        return gossip_round(parts, cohort, server, state, mixing(neighbours).to(first.device), key)

    def links(self, population: int) -> int:
        """How many models travel in a round: one each way between neighbours."""
        return int(adjacency(self.graph, population, self.probability, rng.key("graph")).sum())

    def model(self, server: Tree) -> Model:
        """The mean of all nodes' models."""
        return tree.map(lambda x: x.mean(0), model_of(server))  # type: ignore[no-any-return]

    def sent(self, now: Algorithm, server: Tree, ids: Tensor) -> tuple[Tree, bool]:
        """What these clients would be sent: their own."""
        here = ids.to(tree.leaves(server)[0].device)
        return vmap(now.send)(tree.rows(server, here)), True
