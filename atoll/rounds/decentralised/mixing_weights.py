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
_DECIMALS = 1e-3  # to which a file may have rounded what a node keeps
_NO_GAP = 1e-7


def mixing_of(topology: Topology, rule: WeightRule, stochastic: Stochastic = "rows") -> MixingMatrix:
    """W of a graph: `rows` that sum to 1 (a node takes a mean), or `columns` (a node gives away all that it has).

    metropolis: W_ij = 1 / (1 + max(d_i, d_j)), symmetric on every undirected graph (Xiao and Boyd, 2004).
    uniform: W_ij = 1 / (1 + d_i) with the in-degree of i; of columns, 1 / (1 + d_j) with the out-degree of j.
    given: the file's numbers; what they leave of 1 is the node's own.
    """
    matrix = MixingMatrix(topology, edge_weights(topology, rule, stochastic), stochastic == "columns")
    if rule == "given":
        _check_own(matrix)
    return matrix


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


def check_promise(matrix: MixingMatrix, promise: Promise, rule: WeightRule, method: str) -> None:
    """Refuse (ConfigError) a matrix with which a method would not reach the mean of all nodes."""
    if promise == "symmetric" and not matrix.symmetric:
        raise ConfigError(
            f"round.graph: {method} needs links that are used both ways with one weight, and these are not. Use an "
            "undirected graph with weights = 'metropolis', or round.name = 'push_sum', which takes directed ones."
        )
    if promise != "columns" and not matrix.doubly_stochastic:
        why = "neighbours differ in number" if matrix.topology.symmetric else "it is directed and not regular"
        if rule == "given":
            sums = matrix.sparse.sum(0)
            node = int(np.argmax(np.abs(sums - 1)))
            why = f"what all take of node {node}, itself included, is {sums[node]:.6g} in all"
        instead = "weights = 'metropolis'" if matrix.topology.symmetric else "round.name = 'push_sum'"
        raise ConfigError(
            f"round.weights: with these weights {method} would settle on a weighted mean of the nodes, not on the mean "
            f"({why}, so that columns do not sum to 1). Use {instead}."
        )


def check_connected(matrix: MixingMatrix, method: str) -> None:
    """Refuse (ConfigError) a graph in which nodes cannot hear of each other, ever: a weight of 0 is no link."""
    topology = matrix.topology.only(matrix.weights > 0)
    if not topology.connected:
        way = "" if topology.symmetric else ", or only one way"
        way += " (links of weight 0 carry nothing)" if topology.edges < matrix.topology.edges else ""
        raise ConfigError(
            f"round.graph: {topology.components} parts of it do not hear of each other{way}, so {method} cannot agree "
            "on one model. Add links, or use a connected graph such as 'ring'; for nodes that learn alone there is "
            "algorithm.name = 'local'."
        )


def check_gap(matrix: MixingMatrix, method: str) -> None:
    """Refuse (ConfigError) given weights with which nodes never come closer, though they hear of each other."""
    gap = matrix.spectral_gap
    if gap is not None and gap < _NO_GAP:
        why, instead = "some links carry next to nothing", "Raise them"
        if float(matrix.kept.max()) < _NO_GAP:
            why = "nodes keep nothing of their own, so that models only change places"
            instead = "Let every node keep a part (links of a node that sum to less than 1)"
        raise ConfigError(
            f"round.weights: with the given ones {method} would not bring nodes closer: {why} (a spectral gap of "
            f"{gap:.1g}). {instead}, or use weights = 'metropolis'."
        )


def _check_own(matrix: MixingMatrix) -> None:
    """Refuse (ConfigError) what nodes are said to keep, where it is not what their links leave."""
    own, kept = matrix.topology.own, matrix.kept
    if own is None:
        return
    off = np.nan_to_num(np.abs(own - kept))
    if off.max() > _DECIMALS:
        node = int(off.argmax())
        raise ConfigError(
            f"round.weights: the file gives node {node} {own[node]:.6g} of its own, and its links leave it "
            f"{kept[node]:.6g}. Mend one of them, or leave out the links from nodes to themselves."
        )


def _given(topology: Topology, keeper: np.ndarray) -> Floats:
    if topology.given is None:
        raise ConfigError(
            "round.weights: 'given' takes the weights of a file, and this graph has none. Use weights = 'metropolis', "
            "or graph = { name = 'file', path = ... } with a weight on every edge."
        )
    spent = np.bincount(keeper, topology.given, minlength=topology.nodes)
    if (topology.given < 0).any():
        edge = int(topology.given.argmin())
        a, b = topology.source[edge], topology.target[edge]
        raise ConfigError(
            f"round.weights: the given ones must be 0 or more, and that of nodes {a} and {b} is "
            f"{topology.given[edge]:.6g}. Use weights = 'metropolis', or none below 0."
        )
    if (spent > 1 + _ROUNDING).any():
        node = int(np.argmax(spent))
        raise ConfigError(
            f"round.weights: the given ones must be 0 or more and leave something of 1, and those of node {node} sum "
            f"to {spent[node]:.6g}. Scale them down, or use weights = 'metropolis'."
        )
    return topology.given
