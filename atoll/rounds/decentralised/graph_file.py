"""A graph from a file: an edge list, or what networkx writes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import ParseError

import numpy as np

from atoll.errors import ConfigError
from atoll.rounds.decentralised.peer_graph import PeerGraph
from atoll.rounds.decentralised.topology import Topology


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
        edges = [(names[a], names[b], data.get("weight")) for a, b, data in graph.edges(data=True)]
        weights = [weight for *_, weight in edges]
        given = None if not edges or None in weights else np.array(weights, np.float64)
        return Topology.of(nodes, [(a, b) for a, b, _ in edges], not graph.is_directed(), given)

    def _read(self, path: Path) -> Any:
        try:
            return _READERS.get(path.suffix.lower(), self._edge_list)(path)
        except (ValueError, KeyError, TypeError, IndexError, ParseError) as e:
            raise ConfigError(
                f"round.graph.path: {self.path} cannot be read as {path.suffix or 'an edge list'} ({e}). Use an edge "
                "list (two numbers of clients in a line), GraphML, GEXF, or networkx's adjacency JSON."
            ) from e

    def _edge_list(self, path: Path) -> Any:
        import networkx as nx

        graph = nx.DiGraph() if self.directed else nx.Graph()
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
