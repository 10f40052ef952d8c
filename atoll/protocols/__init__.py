"""Protocols of several messages between parties, and drivers for them in one process and over sockets."""

from atoll.protocols.ckks import CkksAggregation
from atoll.protocols.in_process import Transcript, run_protocol
from atoll.protocols.over_sockets import Served, serve, take_part
from atoll.protocols.paillier_aggregation import PaillierAggregation
from atoll.protocols.secure_aggregation import RandomBytes, SecureAggregation, Security, seeded_bytes
from atoll.protocols.shuffle import SecureShuffle

PROTOCOLS: dict[str, type[SecureAggregation]] = {
    "paillier": PaillierAggregation,
    "ckks": CkksAggregation,
    "shuffle": SecureShuffle,
}

__all__ = [
    "PROTOCOLS",
    "CkksAggregation",
    "PaillierAggregation",
    "RandomBytes",
    "SecureAggregation",
    "SecureShuffle",
    "Security",
    "Served",
    "Transcript",
    "run_protocol",
    "seeded_bytes",
    "serve",
    "take_part",
]
