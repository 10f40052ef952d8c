"""Protocols of several messages between parties, and drivers for them in one process and over sockets."""

from atoll.protocols.additive import AdditiveSharing
from atoll.protocols.ckks import CkksAggregation
from atoll.protocols.cost_model import CostModel, Fit, ProtocolWork
from atoll.protocols.course import NEVER, Course, least_of, rehearse
from atoll.protocols.in_process import Transcript, run_protocol
from atoll.protocols.light_secagg import LightSecAgg
from atoll.protocols.over_sockets import Served, serve, take_part
from atoll.protocols.paillier_aggregation import PaillierAggregation
from atoll.protocols.protocol_costs import ProtocolCosts
from atoll.protocols.secagg import SecAgg
from atoll.protocols.secagg_plus import SecAggPlus
from atoll.protocols.secure_aggregation import RandomBytes, SecureAggregation, Security, seeded_bytes
from atoll.protocols.shuffle import SecureShuffle

PROTOCOLS: dict[str, type[SecureAggregation]] = {
    "additive": AdditiveSharing,
    "secagg": SecAgg,
    "secagg_plus": SecAggPlus,
    "light_secagg": LightSecAgg,
    "paillier": PaillierAggregation,
    "ckks": CkksAggregation,
    "shuffle": SecureShuffle,
}

__all__ = [
    "NEVER",
    "PROTOCOLS",
    "AdditiveSharing",
    "CkksAggregation",
    "CostModel",
    "Course",
    "Fit",
    "LightSecAgg",
    "PaillierAggregation",
    "ProtocolCosts",
    "ProtocolWork",
    "RandomBytes",
    "SecAgg",
    "SecAggPlus",
    "SecureAggregation",
    "SecureShuffle",
    "Security",
    "Served",
    "Transcript",
    "least_of",
    "rehearse",
    "run_protocol",
    "seeded_bytes",
    "serve",
    "take_part",
]
