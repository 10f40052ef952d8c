"""A graph from a file: an edge list, or what networkx writes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import numpy as np

from atoll.errors import ConfigError
from atoll.rounds.decentralised.peer_graph import PeerGraph
from atoll.rounds.decentralised.topology import Floats, Topology


@dataclass(frozen=True)
class FileGraph(PeerGraph):
    """From a file whose nodes are numbers of clients: .graphml, .gexf, .json (networkx's adjacency), else an edge list.

    An edge list has two nodes in a line, and perhaps a weight; # begins a comment. `directed` says how to read it: the
    first node sends to the second. Other files say so themselves.
    """

    path: str
    directed: bool = False
    content: str = field(init=False, repr=False)  # a digest: graphs are kept, and another file is another graph

    def __post_init__(self) -> None:
        path = Path(self.path)
        digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() if path.is_file() else ""
        object.__setattr__(self, "content", digest)

    def build(self, nodes: int, epoch: int) -> Topology:
        path = Path(self.path)
        if not path.is_file():
            raise ConfigError(f"round.graph.path: there is no file {self.path!r}. Give a path from where you start.")
        graph = self._read(path)
        names = {name: self._node(name, nodes) for name in graph.nodes}
        links: dict[tuple[int, int], float | None] = {}
        for a, b, data in graph.edges(data=True):
            ends = (names[a], names[b]) if graph.is_directed() else (min(names[a], names[b]), max(names[a], names[b]))
            weight = self._weight(ends, data.get("weight"))
            if links.setdefault(ends, weight) != weight:
                raise ConfigError(
                    f"round.graph.path: {self.path} gives the link of nodes {ends[0]} and {ends[1]} two weights, "
                    f"{links[ends]} and {weight}. Leave one of them"
                    + (", or say directed = true." if path.suffix not in _READERS and not self.directed else ".")
                )
        return Topology.of(nodes, [*links], not graph.is_directed(), _given(links), _own(links, nodes))

    def _weight(self, ends: tuple[int, int], said: Any) -> float | None:
        if said is None:
            return None
        try:
            weight = float(said)
        except (ValueError, TypeError):
            weight = math.nan
        if not math.isfinite(weight):
            raise ConfigError(
                f"round.graph.path: {self.path} gives the link of nodes {ends[0]} and {ends[1]} the weight {said!r}, "
                "which is no finite number. Mend it, or leave the weights out of the file."
            )
        return weight

    def _read(self, path: Path) -> Any:
        import networkx as nx

        unreadable = (ValueError, KeyError, TypeError, IndexError, AttributeError, ParseError, nx.NetworkXException)
        try:
            return _READERS.get(path.suffix.lower(), self._edge_list)(path)
        except unreadable as e:
            raise ConfigError(
                f"round.graph.path: {self.path} cannot be read as {path.suffix or 'an edge list'} ({e}). Use an edge "
                "list (two numbers of clients in a line), GraphML, GEXF, or networkx's adjacency JSON."
            ) from e

    def _edge_list(self, path: Path) -> Any:
        import networkx as nx

        graph = nx.MultiDiGraph() if self.directed else nx.MultiGraph()
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.partition("#")[0].replace(",", " ").split()
            if len(words) not in (0, 2, 3):
                raise ValueError(f"line {number} has {len(words)} entries")
            if words:
                graph.add_edge(*words[:2], **({"weight": float(words[2])} if len(words) == 3 else {}))
        return graph

    def _node(self, name: Any, nodes: int) -> int:
        if not str(name).isdecimal() or int(name) >= nodes:
            raise ConfigError(
                f"round.graph.path: {self.path} names node {str(name)!r}, and clients are 0 to {nodes - 1}. "
                "Number its nodes like the clients, or use as many clients as it has nodes."
            )
        return int(name)


def _given(links: dict[tuple[int, int], float | None]) -> Floats | None:
    """Of each link, if all but a node's own have a weight."""
    others = [weight for (a, b), weight in links.items() if a != b]
    return None if not others or None in others else np.array([w or 0.0 for w in links.values()], np.float64)


def _own(links: dict[tuple[int, int], float | None], nodes: int) -> Floats | None:
    """(N,) what each node is said to keep: loops; not a number where nothing is said."""
    loops = {a: weight for (a, b), weight in links.items() if a == b and weight is not None}
    return np.array([loops.get(node, np.nan) for node in range(nodes)]) if loops else None


def _graphml(path: Path) -> Any:
    import networkx as nx

    return nx.read_graphml(path)


def _gexf(path: Path) -> Any:
    import networkx as nx

    return nx.read_gexf(path)


def _adjacency_json(path: Path) -> Any:
    import networkx as nx

    return nx.adjacency_graph(json.loads(path.read_text()))


_READERS: dict[str, Callable[[Path], Any]] = {".graphml": _graphml, ".gexf": _gexf, ".json": _adjacency_json}
