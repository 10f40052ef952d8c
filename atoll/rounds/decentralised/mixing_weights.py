"""With what weight a node takes what its neighbours send, and what that promises."""

from __future__ import annotations

from typing import Literal

import numpy as np

from atoll.errors import ConfigError
from atoll.rounds.decentralised.mixing_matrix import MixingMatrix
from atoll.rounds.decentralised.topology import Floats, Topology

WeightRule = Literal["metropolis", "uniform", "given"]
Stochastic = Literal["rows", "columns"]
Promise = Literal["columns", "doubly", "symmetric"]

_ROUNDING = 1e-9


def mixing_of(topology: Topology, rule: WeightRule, stochastic: Stochastic = "rows") -> MixingMatrix:
    """W of a graph: `rows` that sum to 1 (a node takes a mean), or `columns` (a node gives away all that it has).

    metropolis: W_ij = 1 / (1 + max(d_i, d_j)), symmetric on every undirected graph (Xiao and Boyd, 2004).
    uniform: W_ij = 1 / (1 + d_i) with the in-degree of i; of columns, 1 / (1 + d_j) with the out-degree of j.
    given: the file's numbers; what they leave of 1 is the node's own.
    """
    return MixingMatrix(topology, edge_weights(topology, rule, stochastic), stochastic == "columns")


def edge_weights(topology: Topology, rule: WeightRule, stochastic: Stochastic) -> Floats:
    """(E,) of each edge; the rest stays with the node."""
    source, target = topology.source, topology.target
    if rule == "given":
        return _given(topology, target if stochastic == "rows" else source)
    if stochastic == "columns":
        own = topology.out_degree
        most = np.maximum(own[source], own[target]) if rule == "metropolis" else own[source]
    else:
        own = topology.in_degree
        most = np.maximum(own[source], own[target]) if rule == "metropolis" else own[target]
    return np.asarray(1.0 / (1.0 + most), np.float64)


def check_promise(matrix: MixingMatrix, promise: Promise, method: str) -> None:
    """Refuse (ConfigError) a matrix with which a method would not reach the mean of all nodes."""
    if promise == "symmetric" and not matrix.symmetric:
        raise ConfigError(
            f"round.graph: {method} needs links that are used both ways with one weight, and these are not. Use an "
            "undirected graph with weights = 'metropolis', or round.name = 'push_sum', which takes directed ones."
        )
    if promise != "columns" and not matrix.doubly_stochastic:
        why = "neighbours differ in number" if matrix.topology.symmetric else "it is directed and not regular"
        instead = "weights = 'metropolis'" if matrix.topology.symmetric else "round.name = 'push_sum'"
        raise ConfigError(
            f"round.weights: with these weights {method} would settle on a weighted mean of the nodes, not on the mean "
            f"({why}, so that columns do not sum to 1). Use {instead}."
        )


def check_connected(topology: Topology, method: str) -> None:
    """Refuse (ConfigError) a graph in which nodes cannot hear of each other, ever."""
    if not topology.connected:
        way = "" if topology.symmetric else ", or only one way"
        raise ConfigError(
            f"round.graph: {topology.components} parts of it do not hear of each other{way}, so {method} cannot agree "
            "on one model. Add links, or use a connected graph such as 'ring'; for nodes that learn alone there is "
            "algorithm.name = 'local'."
        )


def _given(topology: Topology, keeper: np.ndarray) -> Floats:
    if topology.given is None:
        raise ConfigError(
            "round.weights: 'given' takes the weights of a file, and this graph has none. Use weights = 'metropolis', "
            "or graph = { name = 'file', path = ... } with a weight on every edge."
        )
    spent = np.bincount(keeper, topology.given, minlength=topology.nodes)
    if (topology.given < 0).any() or (spent > 1 + _ROUNDING).any():
        node = int(np.argmax(np.where(spent > 1 + _ROUNDING, spent, -1)))
        raise ConfigError(
            f"round.weights: the given ones must be 0 or more and leave something of 1, and those of node {node} sum "
            f"to {spent[node]:.6g}. Scale them down, or use weights = 'metropolis'."
        )
    return topology.given
