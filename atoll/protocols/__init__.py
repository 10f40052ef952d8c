"""Protocols of several messages between parties, and a driver for them in one process."""

from atoll.protocols.additive import AdditiveSharing
from atoll.protocols.cost_model import CostModel, Fit, ProtocolCosts, ProtocolWork
from atoll.protocols.course import NEVER, Course, rehearse
from atoll.protocols.in_process import Transcript, run_protocol
from atoll.protocols.light_secagg import LightSecAgg
from atoll.protocols.secagg import SecAgg
from atoll.protocols.secagg_plus import SecAggPlus
from atoll.protocols.secure_aggregation import RandomBytes, SecureAggregation, Security, seeded_bytes

PROTOCOLS: dict[str, type[SecureAggregation]] = {
    "additive": AdditiveSharing,
    "secagg": SecAgg,
    "secagg_plus": SecAggPlus,
    "light_secagg": LightSecAgg,
}

__all__ = [
    "NEVER",
    "PROTOCOLS",
    "AdditiveSharing",
    "CostModel",
    "Course",
    "Fit",
    "LightSecAgg",
    "ProtocolCosts",
    "ProtocolWork",
    "RandomBytes",
    "SecAgg",
    "SecAggPlus",
    "SecureAggregation",
    "Security",
    "Transcript",
    "rehearse",
    "run_protocol",
    "seeded_bytes",
]
