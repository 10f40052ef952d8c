"""Protocols of several messages between parties, and a driver for them in one process."""

from atoll.protocols.in_process import Transcript, run_protocol

__all__ = ["Transcript", "run_protocol"]
