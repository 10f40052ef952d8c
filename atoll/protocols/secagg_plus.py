"""SecAgg+: each client shares masks with a few neighbours only, drawn at random (Bell et al., 2020).

Secure single-server aggregation with (poly)logarithmic overhead, CCS 2020, the protocol for semi-honest servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import Annotated

from pydantic import Field

from atoll.errors import ConfigError
from atoll.protocols.graphs import Graph, sparse_graph
from atoll.protocols.masks import check_bits
from atoll.protocols.pairwise import PairwiseMasks
from atoll.protocols.secagg import Bits
from atoll.protocols.secure_aggregation import Security, who_may_collude

Part = Annotated[float, Field(ge=0, lt=1)]
FailureBits = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class SecAggPlus(PairwiseMasks):
    """SecAgg over a ring of neighbours, as many as the shares of corrupt and dropped clients ask for.

    >>> SecAggPlus().graph(100)
    Graph(degree=34, threshold=11, least=70)
    """

    bits: Bits = 32
    corrupt: Part = 0.1  # of the clients that may collude with the server
    dropout: Part = 0.3  # of the clients that may drop out
    privacy_bits: FailureBits = 40  # a vector is exposed with a probability of at most 2^-40, twice
    correctness_bits: FailureBits = 20  # a round is lost, for want of shares, with at most 2^-20
    insecure_seed: bool = False

    def __post_init__(self) -> None:
        check_bits(self.bits)
        if self.corrupt < 0 or self.dropout < 0 or self.corrupt + self.dropout >= 1:
            raise ConfigError(
                f"secure.protocol.corrupt, secure.protocol.dropout: {self.corrupt} and {self.dropout} leave nobody who "
                "is honest and stays. Together they must be below 1."
            )

    def graph(self, clients: int) -> Graph:
        dropped = floor(self.dropout * clients + 1e-9)
        return sparse_graph(clients, self._corrupt(clients), dropped, self.privacy_bits, self.correctness_bits)

    def _corrupt(self, clients: int) -> int:
        return ceil(self.corrupt * clients - 1e-9)

    def security(self, clients: int) -> Security:
        graph = self.graph(clients)
        return Security(
            level=2,
            server_learns=f"the sum over those whose vectors arrived, and who they are; at least {graph.least} of "
            f"{clients}",
            clients_learn="who their neighbours are and which of them are left; nothing of others' vectors beyond what "
            "the server sends",
            assumes="The server keeps to the protocol (it is curious, not lying) and draws the neighbours at random. "
            f"{who_may_collude(self._corrupt(clients), clients, graph.least)} With {graph.degree} neighbours and "
            f"{graph.threshold} shares for a secret this fails with a probability of at most "
            f"2^-{self.privacy_bits - 1}. X25519, HKDF-SHA256, AES-256, ChaCha20-Poly1305.",
        )
