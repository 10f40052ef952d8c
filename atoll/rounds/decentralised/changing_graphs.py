"""Graphs that are another one in every round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from atoll import rng
from atoll.errors import ConfigError
from atoll.rounds.decentralised.peer_graph import PeerGraph, graph_key
from atoll.rounds.decentralised.random_graphs import Seed
from atoll.rounds.decentralised.topology import Floats, Ints, Topology


class EveryRound(PeerGraph):
    """Another one in every round."""

    @property
    def changes(self) -> bool:
        return True

    def epoch(self, number: int) -> int:
        return number


@dataclass(frozen=True)
class OnePeerExponentialGraph(EveryRound):
    """Directed: in round t each node sends to the one 2^(t mod ceil(log2 N)) places on (Assran et al., 2019).

    One message a node and round; with N = 2^d nodes, d rounds of mixing are the exact mean (Ying et al., 2021).
    """

    def epoch(self, number: int) -> int:
        return number

    def build(self, nodes: int, epoch: int) -> Topology:
        i, bits = np.arange(nodes), max(1, (nodes - 1).bit_length())
        return Topology.of(nodes, np.stack([i, (i + (1 << epoch % bits)) % nodes], 1))


@dataclass(frozen=True)
class RandomMatchingGraph(EveryRound):
    """In every round other pairs, drawn at random (Boyd et al., 2006); of an odd number one node stays alone."""

    seed: Seed = 0

    def build(self, nodes: int, epoch: int) -> Topology:
        order = rng.host.permutation(graph_key(self.seed, epoch + 1), nodes)
        return Topology.of(nodes, order[: nodes // 2 * 2].reshape(-1, 2), both_ways=True)


def random_pushes(key: Tensor, nodes: int, fanout: int) -> Topology:
    """Every node sends to `fanout` different others, drawn at random: directed."""
    if fanout >= nodes > 1:
        raise ConfigError(
            f"round.fanout: {fanout} receivers, and a node has {nodes - 1} others. Use at most {nodes - 1}."
        )
    if nodes == 1:
        return Topology.of(1, [])
    source = np.arange(nodes)
    chosen = np.empty((nodes, 0), np.int64)
    for turn in range(fanout):
        drawn = rng.host.uniform(rng.fold_host(key, turn), np.arange(nodes))
        chosen = np.concatenate([chosen, _others(drawn, source, chosen)[:, None]], 1)
    return Topology.of(nodes, np.stack([np.repeat(source, fanout), chosen.reshape(-1)], 1))


def _others(uniform: Floats, source: Ints, chosen: Ints) -> Ints:
    """One more of those that are neither the node itself nor chosen: each as likely as any other."""
    taken = np.sort(np.concatenate([source[:, None], chosen], 1), 1)
    free = len(source) - taken.shape[1]
    place: Ints = np.minimum((uniform * free).astype(np.int64), free - 1)
    for column in range(taken.shape[1]):
        place += place >= taken[:, column]
    return place
