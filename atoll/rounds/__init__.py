"""Who talks to whom in a round: each topology is a generator over the same requests."""

from collections.abc import Callable
from typing import Any

from atoll.rounds.averaged import Averaged
from atoll.rounds.central import Central
from atoll.rounds.certified import Certified, smoothed_votes
from atoll.rounds.clocked import Clocked
from atoll.rounds.compressed_broadcast import CompressedBroadcast
from atoll.rounds.fedma import FedMA
from atoll.rounds.gossip import Gossip
from atoll.rounds.grouped import Grouped, group_of_clients
from atoll.rounds.recompute import Recompute
from atoll.rounds.secure_record import SecureRecord
from atoll.rounds.secured import Secured
from atoll.rounds.server_step import ServerStep, client_key, server_state, server_step
from atoll.rounds.under_attack import UnderAttack
from atoll.rounds.with_root import WithRoot

ROUNDS: dict[str, Callable[..., Any]] = {"central": Central, "gossip": Gossip, "fedma": FedMA}

__all__ = [
    "ROUNDS",
    "Averaged",
    "Central",
    "Certified",
    "Clocked",
    "CompressedBroadcast",
    "FedMA",
    "Gossip",
    "Grouped",
    "Recompute",
    "SecureRecord",
    "Secured",
    "ServerStep",
    "UnderAttack",
    "WithRoot",
    "client_key",
    "group_of_clients",
    "server_state",
    "server_step",
    "smoothed_votes",
]
