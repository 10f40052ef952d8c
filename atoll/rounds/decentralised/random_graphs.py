"""Random graphs: the same for all rounds, or a fresh one every so many."""

# Without postponed annotations: options that other files' classes inherit are read from their signatures.

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from atoll import rng
from atoll.errors import ConfigError
from atoll.rounds.decentralised.peer_graph import PeerGraph, graph_key
from atoll.rounds.decentralised.topology import Ints, Topology

Degree = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0)]
Every = Annotated[int, Field(ge=1)]

_DRAWS = 1 << 22  # of one block: memory stays small, however many pairs there are
_TRIES = 100


@dataclass(frozen=True)
class RandomGraph(PeerGraph):
    """One drawn from a seed of its own. `every`: after so many rounds another one is drawn; left out, never."""

    seed: Seed = 0
    every: Every | None = None

    @property
    def changes(self) -> bool:
        return self.every is not None

    def epoch(self, number: int) -> int:
        return 0 if self.every is None else number // self.every


@dataclass(frozen=True)
class ErdosRenyiGraph(RandomGraph):
    """Every pair with the same probability, laid over a ring, so that it is connected (Erdős and Rényi, 1959)."""

    probability: Share = 0.1

    def build(self, nodes: int, epoch: int) -> Topology:
        i = np.arange(nodes)
        ring = np.stack([i, (i + 1) % nodes], 1)
        pairs = _pairs_below(graph_key(self.seed, epoch), nodes, self.probability)
        return Topology.of(nodes, np.concatenate([ring, pairs]), both_ways=True)


@dataclass(frozen=True)
class RandomRegularGraph(RandomGraph):
    """Everyone has `degree` neighbours, drawn at random: connected, and a gap that does not shrink with N."""

    degree: Degree = 4

    def check(self, nodes: int) -> None:
        _check_degree(self.degree, nodes)
        if nodes > 1 and self.degree * nodes % 2:
            raise ConfigError(
                f"round.graph.degree: {nodes} nodes with {self.degree} neighbours each would be half a link too many. "
                f"Use degree = {self.degree + 1 if self.degree + 1 < nodes else self.degree - 1}, or one client more."
            )
        if self.degree == 1 and nodes > 2:
            raise ConfigError(
                "round.graph.degree: with one neighbour each, pairs never hear of others. Use degree = 2 or more, or "
                "graph = 'random_matching', which draws other pairs in every round."
            )

    def build(self, nodes: int, epoch: int) -> Topology:
        import networkx as nx

        if nodes == 1:
            return Topology.of(1, [])
        return _connected(lambda seed: nx.random_regular_graph(self.degree, nodes, seed), nodes, self.seed, epoch)


@dataclass(frozen=True)
class WattsStrogatzGraph(RandomGraph):
    """A ring with `degree` nearest neighbours, of which a share `rewire` goes anywhere (Watts and Strogatz, 1998).

    Half of them are on each side: `degree` is even.
    """

    degree: Degree = 4
    rewire: Share = 0.1

    def check(self, nodes: int) -> None:
        _check_degree(self.degree, nodes)
        if self.degree < 2:
            raise ConfigError("round.graph.degree: a small world begins as a ring. Use degree = 2 or more.")
        if self.degree % 2:
            more = f" or {self.degree + 1}" if self.degree + 1 < nodes else ""
            raise ConfigError(
                f"round.graph.degree: a small world has as many neighbours on each side, and {self.degree} is odd. Use "
                f"degree = {self.degree - 1}{more}, or graph = 'random_regular', which takes odd ones, too."
            )

    def build(self, nodes: int, epoch: int) -> Topology:
        import networkx as nx

        if nodes == 1:
            return Topology.of(1, [])
        return _connected(
            lambda seed: nx.watts_strogatz_graph(nodes, self.degree, self.rewire, seed), nodes, self.seed, epoch
        )


@dataclass(frozen=True)
class BarabasiAlbertGraph(RandomGraph):
    """Nodes come one by one and link to `attach` that are there, the well-linked first (Barabási and Albert, 1999)."""

    attach: Degree = 2

    def check(self, nodes: int) -> None:
        if nodes > 1 and self.attach >= nodes:
            raise ConfigError(
                f"round.graph.attach: {self.attach} links of each node, and there are {nodes} nodes in all. "
                f"Use at most {nodes - 1}."
            )

    def build(self, nodes: int, epoch: int) -> Topology:
        import networkx as nx

        if nodes == 1:
            return Topology.of(1, [])
        return _connected(lambda seed: nx.barabasi_albert_graph(nodes, self.attach, seed), nodes, self.seed, epoch)


def _check_degree(degree: int, nodes: int) -> None:
    if nodes > 1 and degree >= nodes:
        raise ConfigError(
            f"round.graph.degree: {degree} neighbours, and a node has {nodes - 1} others at most. "
            f"Use at most {nodes - 1}, or graph = 'complete'."
        )


def _connected(draw: Callable[[np.random.Generator], Any], nodes: int, seed: int, epoch: int) -> Topology:
    """The first connected one of networkx's, from a generator that the key fixes."""
    for turn in range(_TRIES):
        words = rng.fold_host(graph_key(seed, epoch), turn).tolist()
        graph = draw(np.random.Generator(np.random.PCG64(words)))
        topology = Topology.of(nodes, np.array(list(graph.edges()), np.int64).reshape(-1, 2), both_ways=True)
        if topology.connected:
            return topology
    raise ConfigError(
        f"round.graph: none of {_TRIES} graphs of {nodes} nodes drawn like this is connected. Use a larger degree."
    )


def _pairs_below(key: Any, nodes: int, probability: float) -> Ints:
    """Pairs i < j whose number of `rng.uniform(key, (N, N))` is below the probability; drawn block by block."""
    bound, rows, found = np.float32(probability), max(1, _DRAWS // nodes), []
    for first in range(0, nodes, rows):
        last = min(nodes, first + rows)
        begin, end = first * nodes, last * nodes
        words = rng.host.stream(key, np.arange(begin // 2, (end + 1) // 2))
        both = np.stack([words >> np.uint64(32), words & np.uint64(0xFFFFFFFF)], -1).reshape(-1)
        block = both[begin % 2 : begin % 2 + end - begin].reshape(last - first, nodes)
        uniform = ((block >> np.uint64(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)
        i, j = np.nonzero(np.triu(uniform < bound, first + 1))
        found.append(np.stack([i + first, j], 1))
    return np.concatenate(found)
