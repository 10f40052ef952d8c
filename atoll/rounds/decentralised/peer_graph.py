"""What a graph is: from a number of nodes and of a round to who sends to whom."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache

from torch import Tensor

from atoll import rng
from atoll.rounds.decentralised.topology import Topology


class PeerGraph(ABC):
    """A frozen dataclass whose fields are its options. The same number gives the same graph: nothing is kept.

    A graph that changes stands for a sequence of them, of which `epoch` says which one a round has.
    """

    @property
    def changes(self) -> bool:
        """Is it another one in other rounds?"""
        return False

    def epoch(self, number: int) -> int:
        """Which of its graphs round `number` has, counted from 0."""
        return 0

    def check(self, nodes: int) -> None:
        """Refuse (ConfigError) so many nodes, if there is no such graph."""

    @abstractmethod
    def build(self, nodes: int, epoch: int) -> Topology:
        """The graph itself."""

    def topology(self, nodes: int, number: int) -> Topology:
        """The graph of a round."""
        return _topology(self, nodes, self.epoch(number))


@lru_cache(maxsize=8)
def _topology(graph: PeerGraph, nodes: int, epoch: int) -> Topology:
    """Rounds ask for the same one again and again."""
    graph.check(nodes)
    return graph.build(nodes, epoch)


def graph_key(seed: int, epoch: int) -> Tensor:
    """What a random graph is drawn from: not from the run's seed, so that seeds and methods share one graph."""
    return rng.key("graph") if seed == epoch == 0 else rng.key("graph", seed, epoch)
