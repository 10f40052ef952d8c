"""Who talks to whom in a round: each topology is a generator over the same requests."""

from collections.abc import Callable
from typing import Any

from atoll.rounds.asynchronous import Asynchronous
from atoll.rounds.asynchronous_names import asynchronous, fedasync, fedbuff
from atoll.rounds.averaged import Averaged
from atoll.rounds.central import Central
from atoll.rounds.certified import CLIPPED, Certified, vote_counts
from atoll.rounds.clocked import Clocked
from atoll.rounds.clustered_fl import ClusteredFL
from atoll.rounds.compressed_broadcast import CompressedBroadcast
from atoll.rounds.cyclic import CyclicTransfer
from atoll.rounds.decentralised import (
    DECENTRALISED,
    GRAPHS,
    AllReduce,
    Choco,
    Decentralised,
    Epidemic,
    ExactDiffusion,
    Gossip,
    GradientTracking,
    PeerGraph,
    PushSum,
)
from atoll.rounds.fedma import FedMA
from atoll.rounds.hierarchical import Hierarchical
from atoll.rounds.hierarchical_names import hierarchical
from atoll.rounds.hypcluster import HypCluster
from atoll.rounds.ifca import Ifca
from atoll.rounds.knowledge_transfer import KnowledgeTransfer
from atoll.rounds.one_shot import OneShot
from atoll.rounds.recompute import Recompute
from atoll.rounds.ring import Ring
from atoll.rounds.secure_record import SecureRecord
from atoll.rounds.secured import Secured
from atoll.rounds.sent_by_group import SentByGroup, group_of_clients
from atoll.rounds.server_step import ServerStep, client_key, server_key, server_state, server_step
from atoll.rounds.stale_updates import StaleUpdates
from atoll.rounds.summation import PlainSummation, ProtocolSeconds, ProtocolSummation
from atoll.rounds.swarm import Swarm
from atoll.rounds.under_attack import UnderAttack
from atoll.rounds.with_root import WithRoot

ROUNDS: dict[str, Callable[..., Any]] = {
    "central": Central,
    **DECENTRALISED,
    "swarm": Swarm,
    "cyclic": CyclicTransfer,
    "ring": Ring,
    "one_shot": OneShot,
    "ifca": Ifca,
    "hypcluster": HypCluster,
    "clustered_fl": ClusteredFL,
    "fedma": FedMA,
    "asynchronous": asynchronous,
    "fedasync": fedasync,
    "fedbuff": fedbuff,
    "hierarchical": hierarchical,
}

__all__ = [
    "CLIPPED",
    "DECENTRALISED",
    "GRAPHS",
    "ROUNDS",
    "AllReduce",
    "Asynchronous",
    "Averaged",
    "Central",
    "Certified",
    "Choco",
    "Clocked",
    "ClusteredFL",
    "CompressedBroadcast",
    "CyclicTransfer",
    "Decentralised",
    "Epidemic",
    "ExactDiffusion",
    "FedMA",
    "Gossip",
    "GradientTracking",
    "Hierarchical",
    "HypCluster",
    "Ifca",
    "KnowledgeTransfer",
    "OneShot",
    "PeerGraph",
    "PlainSummation",
    "ProtocolSeconds",
    "ProtocolSummation",
    "PushSum",
    "Recompute",
    "Ring",
    "SecureRecord",
    "Secured",
    "SentByGroup",
    "ServerStep",
    "StaleUpdates",
    "Swarm",
    "UnderAttack",
    "WithRoot",
    "client_key",
    "group_of_clients",
    "server_key",
    "server_state",
    "server_step",
    "vote_counts",
]
