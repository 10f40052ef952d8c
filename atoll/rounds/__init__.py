"""Who talks to whom in a round. A round is a plain function, so a new topology is a new function."""

from atoll.rounds.central import Central, central_round, nobody
from atoll.rounds.context import Parts, clients_key
from atoll.rounds.gossip import Gossip, gossip_round
from atoll.rounds.private import NoisySum, Planted

ROUNDS = {"central": Central, "gossip": Gossip}

__all__ = [
    "ROUNDS",
    "Central",
    "Gossip",
    "NoisySum",
    "Parts",
    "Planted",
    "central_round",
    "clients_key",
    "gossip_round",
    "nobody",
]
