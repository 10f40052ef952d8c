"""SecAgg: everybody shares a mask with everybody (Bonawitz et al., 2017), and signs who is left if the server may lie.

Practical secure aggregation for privacy-preserving machine learning, CCS 2017: advertise keys, share keys, masked
input, consistency check (of the protocol for active servers), unmasking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from torch import Tensor

from atoll.errors import ConfigError
from atoll.protocols.graphs import Graph
from atoll.protocols.keys import enrol_identities, need_cryptography
from atoll.protocols.masks import LEAST_BITS, MOST_BITS, check_bits
from atoll.protocols.pairwise import PairwiseMasks
from atoll.protocols.secure_aggregation import Security, who_may_collude
from atoll.protocols.threshold import Threshold, threshold_of
from atoll.tree import Tree

Bits = Annotated[int, Field(ge=LEAST_BITS, le=MOST_BITS)]


@dataclass(frozen=True)
class SecAgg(PairwiseMasks):
    """The sum of all vectors whose clients stayed until theirs arrived, if `threshold` stay to the end.

    >>> SecAgg().least(100), SecAgg(threshold=0.5).least(100), SecAgg(threshold=80).least(100)
    (67, 51, 80)
    """

    bits: Bits = 32
    threshold: Threshold = 2 / 3  # more than this share of the clients; from 1 on: so many
    active_server: bool = False  # the server may tell clients different things: they sign who is left
    insecure_seed: bool = False

    def __post_init__(self) -> None:
        check_bits(self.bits)
        if self.threshold <= 0:
            raise ConfigError(f"secure.threshold: must be above 0 (got {self.threshold}). 2 / 3 is what the paper has.")

    def graph(self, clients: int) -> Graph:
        t = threshold_of(self.threshold, clients)
        if self.active_server and 3 * t <= 2 * clients:
            raise ConfigError(
                f"secure.threshold: {t} of {clients} clients could be asked twice by a server that lies. Against an "
                f"active server it must be above two thirds: {2 * clients // 3 + 1}. Or set active_server = false in "
                "secure.protocol."
            )
        return Graph(max(clients - 1, 1), t, t)

    def checks_consistency(self) -> bool:
        return self.active_server

    def enrol(self, ids: Sequence[int], key: Tensor) -> Mapping[int, Tree]:
        if not self.active_server:
            return {}
        need_cryptography("SecAgg")
        return enrol_identities(ids, self.random_bytes(key))

    def security(self, clients: int) -> Security:
        t = self.least(clients)
        server = (
            "The server may lie: it must tell all the same survivors, or clients reveal nothing. Clients' signing "
            "keys, and how many clients a round has, come from a directory that the server does not write. "
            if self.active_server
            else "The server keeps to the protocol (it is curious, not lying). "
        )
        return Security(
            level=2,
            server_learns=f"the sum over those whose vectors arrived, and who they are; at least {t} of {clients}",
            clients_learn="who takes part and who is left; nothing of others' vectors beyond what the server sends",
            assumes=f"{server}{who_may_collude(_tolerated(t, clients, self.active_server), clients, t)} "
            "X25519, HKDF-SHA256, AES-256, ChaCha20-Poly1305" + (", Ed25519." if self.active_server else "."),
        )


def _tolerated(t: int, clients: int, active: bool) -> int:
    """Colluding clients: fewer than t hold the shares of one secret; a lying server asks two sets of t (2 t - n)."""
    return max(0, 2 * t - clients - 1) if active else t - 1
