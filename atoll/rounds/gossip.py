"""No server: every node runs the same client program, then averages with its neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from atoll import rng, tree
from atoll.algorithms import model_of
from atoll.core import Algorithm, Context, Model, Outcome, Play, Reducer, Round, Stack, Total, Traffic
from atoll.errors import ConfigError
from atoll.reducers import Collect, Mean
from atoll.rounds.graphs import GraphName, adjacency, mixing
from atoll.rounds.server_step import client_key
from atoll.tree import Tree
from atoll.wire import wire_bytes


@dataclass(frozen=True)
class Gossip(Round):
    """No server: nodes train, then average with their neighbours in a graph (Lian et al., 2017).

    Every node is a server of one client: its own update takes the whole way through the transforms, there and back.
    """

    graph: GraphName = "ring"
    probability: Annotated[float, Field(ge=0, le=1)] = 0.1

    @property
    def per_client(self) -> bool:
        return True

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        if not isinstance(named, Mean):
            raise ConfigError(
                f"reducer.name: gossip mixes neighbours by its graph, so {type(named).__name__} would not be used. "
                "Leave reducer out, or use round.name = 'central'."
            )
        return Collect()

    def check(self, algorithm: Algorithm) -> None:
        if algorithm.traits().pooled:
            raise ConfigError(
                f"round.name: {type(algorithm).__name__} trains on all data in one place, and gossip has no "
                "such place. Use round.name = 'central'."
            )
        if algorithm.traits().counts_clients:
            raise ConfigError(
                f"round.name: gossip has no server to keep what {type(algorithm).__name__} keeps there. "
                "Use round.name = 'central', or an algorithm such as fedavg or fedprox."
            )

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        """Every node's own state; all start alike."""
        chain, _ = ctx.chain.init(ctx.update_like)
        return {
            "server": _copies(ctx.algorithm.init(model, key), ctx.population),
            "chain": _copies(chain, ctx.population),
        }

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        """Every node of the cohort trains from its own model and applies its own update; then all mix."""
        ids, participation = ctx.sample()
        trained = yield ctx.train(*self.broadcast(ctx, state, ids), ids, client_key(key), per_client=True)
        nodes = ids[trained.order]
        state = _stepped(ctx, state, nodes, trained.partial, rng.fold_name(key, "server"))
        weights = mixing(self._neighbours(ctx.population)).to(_device(state))
        mixed = tree.map(lambda x: torch.einsum("ij,j...->i...", weights, x), model_of(state["server"]))
        sent = wire_bytes(tree.rows(model_of(state["server"]), 0)) * self.links(ctx.population)
        outcome = Outcome(
            ids, participation, trained.examples, trained.columns, Traffic(sent, sent), bool(trained.rows)
        )
        return {**state, "server": {**state["server"], **mixed}}, outcome

    def model(self, state: Tree) -> Model:
        """The mean of all nodes' models."""
        return tree.map(lambda x: x.mean(0), model_of(state["server"]))  # type: ignore[no-any-return]

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        """Their own models."""
        here = ids.to(_device(state))
        sent = torch.func.vmap(ctx.algorithm.send)(tree.rows(state["server"], here))
        seen = ctx.chain.client_view(state["chain"])
        return sent, tree.rows(seen, here) if tree.leaves(seen) else seen

    def links(self, population: int) -> int:
        """How many models travel in a round: one each way between neighbours."""
        return int(self._neighbours(population).sum())

    def _neighbours(self, population: int) -> Tensor:
        """The same graph in every round."""
        return adjacency(self.graph, population, self.probability, rng.key("graph"))


def _stepped(ctx: Context, state: Tree, nodes: Tensor, stack: Stack, key: Tensor) -> Tree:
    """Each of these nodes as the server of its own update: the transforms' way back, then the algorithm's step."""
    if not len(nodes):
        return state
    here = nodes.to(_device(state))
    rows = {"server": tree.rows(state["server"], here), "value": stack.updates.value, "weight": stack.updates.weight}
    chain = tree.rows(state["chain"], here) if tree.leaves(state["chain"]) else state["chain"]
    # For transforms, for apply.
    keys = [(rng.fold_host(key, int(n)), rng.fold_name(key, "apply", int(n))) for n in nodes]
    if ctx.chain.has_server_side():  # which may do anything: one by one
        own = [_alone(ctx, tree.rows(rows, i), _row(chain, i), *pair) for i, pair in enumerate(keys)]
        new = tree.map(lambda *xs: torch.stack(xs), *own)
    else:
        apply = torch.func.vmap(lambda row, k: _alone(ctx, row, chain, key, k)["server"])
        new = {"server": apply(rows, torch.stack([k for _, k in keys]).to(here.device)), "chain": chain}
    return tree.map(lambda old, x: old.index_copy(0, here, x), state, new)  # type: ignore[no-any-return]


def _alone(ctx: Context, row: Tree, chain: Tree, key: Tensor, apply_key: Tensor) -> Tree:
    """One node: a sum over its own update alone."""
    one = torch.ones_like(row["weight"])
    weight = torch.where(row["weight"] > 0, row["weight"], one)  # a node without examples stays where it is
    total = Total(tree.scale(row["value"], row["weight"]), weight, one, invited=1)
    total, chain = ctx.chain.server(total, chain, key)
    return {"server": ctx.algorithm.apply(row["server"], total, apply_key), "chain": chain}


def _row(rows: Tree, i: int) -> Tree:
    return tree.rows(rows, i) if tree.leaves(rows) else rows


def _copies(state: Tree, n: int) -> Tree:
    return tree.map(torch.clone, tree.stack(state, n))  # type: ignore[no-any-return]


def _device(state: Tree) -> torch.device:
    return tree.leaves(state["server"])[0].device
