"""Protocols of several messages between parties, and a driver for them in one process."""

from atoll.protocols.in_process import Transcript, run_protocol
from atoll.protocols.secure_aggregation import RandomBytes, SecureAggregation, Security, seeded_bytes

__all__ = ["RandomBytes", "SecureAggregation", "Security", "Transcript", "run_protocol", "seeded_bytes"]
