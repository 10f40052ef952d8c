"""Graphs with nothing random in them: lattices, hubs, cubes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from atoll.errors import ConfigError
from atoll.rounds.decentralised.peer_graph import PeerGraph
from atoll.rounds.decentralised.topology import Topology


@dataclass(frozen=True)
class RingGraph(PeerGraph):
    """Each node and its two neighbours on a circle. Spectral gap about 13 / N^2."""

    def build(self, nodes: int, epoch: int) -> Topology:
        i = np.arange(nodes)
        return Topology.of(nodes, np.stack([i, (i + 1) % nodes], 1), both_ways=True)


@dataclass(frozen=True)
class CompleteGraph(PeerGraph):
    """Everyone with everyone: one round of mixing is the mean."""

    def build(self, nodes: int, epoch: int) -> Topology:
        i = np.arange(nodes)
        return Topology.of(nodes, np.stack([np.repeat(i, nodes), np.tile(i, nodes)], 1))


@dataclass(frozen=True)
class StarGraph(PeerGraph):
    """Node 0 with all others, who know only node 0."""

    def build(self, nodes: int, epoch: int) -> Topology:
        i = np.arange(1, nodes)
        return Topology.of(nodes, np.stack([np.zeros_like(i), i], 1), both_ways=True)


@dataclass(frozen=True)
class GridGraph(PeerGraph):
    """Rows of floor(sqrt(N)) nodes, neighbours above, below, left and right; the last row may be shorter."""

    def build(self, nodes: int, epoch: int) -> Topology:
        wide = max(1, math.isqrt(nodes))
        i = np.arange(nodes)
        right, below = i[(i % wide < wide - 1) & (i + 1 < nodes)], i[i + wide < nodes]
        pairs = np.concatenate([np.stack([right, right + 1], 1), np.stack([below, below + wide], 1)])
        return Topology.of(nodes, pairs, both_ways=True)


@dataclass(frozen=True)
class TorusGraph(PeerGraph):
    """A grid whose edges are joined: rows x columns = N, four neighbours each. `rows` left out: nearest to a square.

    Two rows (or columns) have one link between them and not two: three neighbours each.
    """

    rows: Annotated[int, Field(ge=2)] | None = None

    def check(self, nodes: int) -> None:
        rows = self._rows(nodes)
        if nodes > 1 and (rows < 2 or nodes % rows or nodes // rows < 2):
            which, such = "rows", _square_near(nodes)
            if self.rows is not None:
                which, such = f"{self.rows} rows", max(2, round(nodes / self.rows)) * self.rows
            raise ConfigError(
                f"round.graph: a torus needs {which} of two nodes or more that are all full, and {nodes} nodes "
                f"give none. Use a number of nodes such as {such}, or graph = 'grid', which takes any."
            )

    def build(self, nodes: int, epoch: int) -> Topology:
        wide = nodes // max(1, self._rows(nodes))
        i = np.arange(nodes)
        row, column = i // wide, i % wide
        right, below = row * wide + (column + 1) % wide, (i + wide) % nodes
        return Topology.of(nodes, np.concatenate([np.stack([i, right], 1), np.stack([i, below], 1)]), both_ways=True)

    def _rows(self, nodes: int) -> int:
        if self.rows is not None:
            return self.rows
        return next(r for r in range(math.isqrt(nodes), 0, -1) if nodes % r == 0)


@dataclass(frozen=True)
class HypercubeGraph(PeerGraph):
    """N = 2^d nodes, neighbours where one bit of the number differs: d of them, any other in d hops."""

    def check(self, nodes: int) -> None:
        if nodes & (nodes - 1):
            below = 1 << (nodes.bit_length() - 1)
            raise ConfigError(
                f"round.graph: a hypercube has 2, 4, 8, ... nodes, and there are {nodes}. Use {below} or {2 * below} "
                "clients, or graph = 'exponential', which takes any number and has as many neighbours."
            )

    def build(self, nodes: int, epoch: int) -> Topology:
        i, bits = np.arange(nodes), (nodes - 1).bit_length()
        pairs = [np.stack([i, i ^ (1 << b)], 1) for b in range(bits)]
        return Topology.of(nodes, np.concatenate(pairs) if pairs else [])


@dataclass(frozen=True)
class ExponentialGraph(PeerGraph):
    """Directed: each node sends to those 1, 2, 4, 8, ... places on, ceil(log2 N) of them (Ying et al., 2021)."""

    def build(self, nodes: int, epoch: int) -> Topology:
        i = np.arange(nodes)
        pairs = [np.stack([i, (i + (1 << b)) % nodes], 1) for b in range((nodes - 1).bit_length())]
        return Topology.of(nodes, np.concatenate(pairs) if pairs else [])


def _square_near(nodes: int) -> int:
    return int(max(2, math.isqrt(nodes)) ** 2)
