"""Learning without a server: graphs, mixing, methods, and the all-reduce among equals."""

from collections.abc import Callable
from typing import Any

from atoll.rounds.decentralised.all_reduce import AllReduce
from atoll.rounds.decentralised.changing_graphs import OnePeerExponentialGraph, RandomMatchingGraph
from atoll.rounds.decentralised.choco import Choco
from atoll.rounds.decentralised.decentralised import Decentralised, MixResult, NodeStep, OnGraph
from atoll.rounds.decentralised.epidemic import Epidemic
from atoll.rounds.decentralised.exact_diffusion import ExactDiffusion
from atoll.rounds.decentralised.fixed_graphs import (
    CompleteGraph,
    ExponentialGraph,
    GridGraph,
    HypercubeGraph,
    RingGraph,
    StarGraph,
    TorusGraph,
)
from atoll.rounds.decentralised.gossip import Gossip
from atoll.rounds.decentralised.gradient_tracking import GradientTracking
from atoll.rounds.decentralised.graph_file import FileGraph
from atoll.rounds.decentralised.mixing_matrix import MixingMatrix
from atoll.rounds.decentralised.mixing_weights import mixing_of
from atoll.rounds.decentralised.nodes import consensus_distance
from atoll.rounds.decentralised.peer_graph import PeerGraph
from atoll.rounds.decentralised.push_sum import PushSum
from atoll.rounds.decentralised.random_graphs import (
    BarabasiAlbertGraph,
    ErdosRenyiGraph,
    RandomRegularGraph,
    WattsStrogatzGraph,
)
from atoll.rounds.decentralised.reduce_plans import SendSchedule, execute, schedule
from atoll.rounds.decentralised.topology import Topology

GRAPHS: dict[str, Callable[..., Any]] = {
    "ring": RingGraph,
    "complete": CompleteGraph,
    "star": StarGraph,
    "grid": GridGraph,
    "torus": TorusGraph,
    "hypercube": HypercubeGraph,
    "exponential": ExponentialGraph,
    "erdos_renyi": ErdosRenyiGraph,
    "random": ErdosRenyiGraph,
    "random_regular": RandomRegularGraph,
    "watts_strogatz": WattsStrogatzGraph,
    "barabasi_albert": BarabasiAlbertGraph,
    "one_peer_exponential": OnePeerExponentialGraph,
    "random_matching": RandomMatchingGraph,
    "file": FileGraph,
}

DECENTRALISED: dict[str, Callable[..., Any]] = {
    "gossip": Gossip,
    "push_sum": PushSum,
    "gradient_tracking": GradientTracking,
    "d2": ExactDiffusion,
    "epidemic": Epidemic,
    "choco": Choco,
    "all_reduce": AllReduce,
}

__all__ = [
    "DECENTRALISED",
    "GRAPHS",
    "AllReduce",
    "BarabasiAlbertGraph",
    "Choco",
    "CompleteGraph",
    "Decentralised",
    "Epidemic",
    "ErdosRenyiGraph",
    "ExactDiffusion",
    "ExponentialGraph",
    "FileGraph",
    "Gossip",
    "GradientTracking",
    "GridGraph",
    "HypercubeGraph",
    "MixResult",
    "MixingMatrix",
    "NodeStep",
    "OnGraph",
    "OnePeerExponentialGraph",
    "PeerGraph",
    "PushSum",
    "RandomMatchingGraph",
    "RandomRegularGraph",
    "RingGraph",
    "SendSchedule",
    "StarGraph",
    "Topology",
    "TorusGraph",
    "WattsStrogatzGraph",
    "consensus_distance",
    "execute",
    "mixing_of",
    "schedule",
]
