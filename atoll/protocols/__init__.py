"""Protocols of several messages between parties, and a driver for them in one process."""

from collections.abc import Callable
from typing import Any

from atoll.protocols.cost_model import CostModel, Fit, ProtocolCosts, ProtocolWork
from atoll.protocols.course import NEVER, Course, rehearse
from atoll.protocols.in_process import Transcript, run_protocol
from atoll.protocols.secure_aggregation import RandomBytes, SecureAggregation, Security, seeded_bytes

PROTOCOLS: dict[str, Callable[..., Any]] = {}

__all__ = [
    "NEVER",
    "PROTOCOLS",
    "CostModel",
    "Course",
    "Fit",
    "ProtocolCosts",
    "ProtocolWork",
    "RandomBytes",
    "SecureAggregation",
    "Security",
    "Transcript",
    "rehearse",
    "run_protocol",
    "seeded_bytes",
]
