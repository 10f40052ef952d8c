"""What all rounds without a server share: nodes train from their own models, and then something travels on a graph."""

# Without postponed annotations: options that other files' classes inherit are read from their signatures.

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from atoll import rng, tree
from atoll.algorithms import model_of
from atoll.clock import Clock
from atoll.core import OWN_MODELS, Algorithm, Context, Model, Outcome, Play, Reducer, Round, RoundTraits, Traffic
from atoll.errors import ConfigError
from atoll.reducers import Collect, Mean
from atoll.rounds.algorithm_needs import check_needs
from atoll.rounds.decentralised.fixed_graphs import RingGraph
from atoll.rounds.decentralised.mixing_matrix import MixingMatrix
from atoll.rounds.decentralised.mixing_weights import (
    Promise,
    Stochastic,
    WeightRule,
    check_connected,
    check_gap,
    check_promise,
    mixing_of,
)
from atoll.rounds.decentralised.node_clock import NodeClocked
from atoll.rounds.decentralised.nodes import consensus_distance, node_copies, node_device, node_steps
from atoll.rounds.decentralised.peer_graph import PeerGraph
from atoll.rounds.decentralised.topology import Topology
from atoll.rounds.server_step import client_key
from atoll.tree import Tree
from atoll.wire import wire_bytes

_MOST_LINKS = 2_000  # in run.json
_MOST_NODES = 100  # of which each has a number of its own in a line of the record


class MixResult(NamedTuple):
    """The state after the exchange, and the bytes of each node's message to each of its neighbours: (N,), or of all."""

    state: Tree
    message: int | Tensor


class NodeStep(NamedTuple):
    """A round's state before anybody trained and after, and the nodes that did."""

    before: Tree
    after: Tree
    nodes: Tensor


class Decentralised(Round):
    """No server. Every node is a server of one client: its update takes the whole way through the transforms.

    x_i + delta_i is where node i is after its own step; `mix` says what becomes of all of them. State:
    {"server", "chain"} with a row for each node, and what the method itself keeps, under a name of its own.
    """

    title: ClassVar[str]  # as messages call it
    takes: ClassVar[str] = "an algorithm such as fedavg or fedprox"

    @abstractmethod
    def matrix(self, nodes: int, number: int, key: Tensor) -> MixingMatrix:
        """W of round `number`, whose key this is."""

    @abstractmethod
    def mix(self, ctx: Context, stepped: NodeStep, matrix: MixingMatrix, key: Tensor) -> MixResult:
        """The exchange: what nodes send, and what becomes of them."""

    def start(self, models: Model) -> Tree:
        """What the method keeps, before the first round: {name: a tree}."""
        return {}

    def bytes_per_message(self, ctx: Context, state: Tree) -> int:
        """Of a node's message to one neighbour, at most."""
        return wire_bytes(tree.rows(model_of(state["server"]), 0))

    def traits(self) -> RoundTraits:
        return OWN_MODELS

    def reducer(self, named: Reducer[Any]) -> Reducer[Any]:
        if not isinstance(named, Mean):
            raise ConfigError(
                f"reducer.name: {self.title} mixes neighbours by its graph, so {type(named).__name__} would not be "
                "used. Leave reducer out, or use round.name = 'central'."
            )
        return Collect()

    def check(self, algorithm: Algorithm) -> None:
        pooled = f"and {self.title} has no such place. Use round.name = 'central'."
        check_needs(algorithm, pooled, f"and {self.title} has no server. Use round.name = 'central', or {self.takes}.")

    def in_virtual_time(self, clock: Clock, steps: Callable[[Tensor], Tensor]) -> Round:
        return NodeClocked.around(self, clock, steps)

    def init(self, ctx: Context, model: Model, key: Tensor) -> Tree:
        """Every node's own state; all start alike."""
        chain, _ = ctx.chain.init(ctx.update_like)
        server = node_copies(ctx.algorithm.init(model, key), ctx.population)
        return {"server": server, "chain": node_copies(chain, ctx.population), **self.start(model_of(server))}

    def run(self, ctx: Context, state: Tree, key: Tensor) -> Play:
        """Every node of the cohort trains from its own model and applies its own update; then all mix."""
        ids, participation = ctx.sample()
        trained = yield ctx.train(*self.broadcast(ctx, state, ids), ids, client_key(key), per_client=True)
        nodes = ids[trained.order]
        after = node_steps(ctx, state, nodes, trained.partial, rng.fold_name(key, "server"))
        matrix = self.matrix(ctx.population, ctx.number, key)
        with torch.no_grad():
            mixed = self.mix(ctx, NodeStep(state, after, nodes.to(node_device(state))), matrix, key)
        sent = _sent(matrix.topology, mixed.message)
        distance = consensus_distance(mixed.state["server"]["params"])
        said = {"consensus_distance": distance, **_traffic(matrix.topology, mixed.message, sent)}
        columns = trained.examples, trained.columns, Traffic(sent, sent)
        return mixed.state, Outcome(ids, participation, *columns, bool(trained.rows), said)

    def model(self, state: Tree) -> Model:
        """The mean of all nodes' models."""
        return tree.map(lambda x: x.mean(0), model_of(state["server"]))  # type: ignore[no-any-return]

    def broadcast(self, ctx: Context, state: Tree, ids: Tensor) -> tuple[Tree, Tree]:
        """Their own models."""
        here = ids.to(node_device(state))
        sent = torch.func.vmap(ctx.algorithm.send)(tree.rows(state["server"], here))
        seen = ctx.chain.client_view(state["chain"])
        return sent, tree.rows(seen, here) if tree.leaves(seen) else seen


@dataclass(frozen=True)
class OnGraph(Decentralised):
    """One whose neighbours are those of a graph that is named."""

    promise: ClassVar[Promise] = "doubly"  # what W must be for the method to reach the mean
    stochastic: ClassVar[Stochastic] = "rows"
    takes_changes: ClassVar[bool] = True  # may the graph be another one in other rounds?

    graph: PeerGraph = RingGraph()
    weights: WeightRule = "metropolis"

    def matrix(self, nodes: int, number: int, key: Tensor) -> MixingMatrix:
        return _matrix(self, nodes, self.graph.epoch(number))

    def check_population(self, population: int) -> None:
        if self.graph.changes and not self.takes_changes:
            raise ConfigError(
                f"round.graph: {self.title} builds on what neighbours sent in the round before, and this graph has "
                "others in other rounds. Use a fixed one such as 'ring' or 'random_regular' without `every`, or "
                "round.name = 'gossip'."
            )
        matrix = _matrix(self, population, self.graph.epoch(0))
        if not self.graph.changes:
            check_connected(matrix, self.title)
        check_promise(matrix, self.promise, self.weights, self.title)
        if self.weights == "given":
            check_gap(self.mixed_by(matrix), self.title)
        self.check_matrix(matrix)

    def mixed_by(self, matrix: MixingMatrix) -> MixingMatrix:
        """What models are multiplied with in a round, from W: its gap is the method's."""
        return matrix

    def check_matrix(self, matrix: MixingMatrix) -> None:
        """What else the method asks of W (ConfigError)."""

    def facts(self, population: int) -> dict[str, Any]:
        matrix = _matrix(self, population, self.graph.epoch(0))
        graph, links = matrix.topology, matrix.topology.edges
        said: dict[str, Any] = {"nodes": population, "edges": links, "directed": not graph.symmetric}
        said |= {"changes": self.graph.changes, "digest": matrix.digest}
        if not self.graph.changes:
            said["spectral_gap"] = matrix.spectral_gap
        return {"topology": said | ({"links": graph.pairs()} if links <= _MOST_LINKS else {})}


@lru_cache(maxsize=8)
def _matrix(round: OnGraph, nodes: int, epoch: int) -> MixingMatrix:
    """Rounds ask for the same one again and again; those of one epoch are alike."""
    graph = round.graph
    graph.check(nodes)
    return mixing_of(graph.build(nodes, epoch), round.weights, round.stochastic)


def _traffic(topology: Topology, message: int | Tensor, sent: int) -> Tree:
    """What a line of the record says of the edges; of each node's messages where they differ, unless they are many."""
    edges = {"edges": torch.tensor(topology.edges), "bytes_per_edge": torch.tensor(sent / max(1, topology.edges))}
    differ = not isinstance(message, int) and topology.nodes <= _MOST_NODES
    return edges | ({"message_bytes": torch.as_tensor(message)} if differ else {})


def _sent(topology: Topology, message: int | Tensor) -> int:
    """Bytes of a round: each goes out once and comes in once."""
    if isinstance(message, int):
        return message * topology.edges
    return int((message.cpu() * torch.from_numpy(topology.out_degree)).sum())
