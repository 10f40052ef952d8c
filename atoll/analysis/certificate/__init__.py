"""What a run with server.crfl certifies: how many test examples keep their class under a backdoor of a given size."""

from atoll.analysis.certificate.certify import certify

__all__ = ["certify"]
