"""Secure aggregation by pairwise masks that cancel in the sum: what SecAgg and SecAgg+ have in common.

Client u sends x_u + PRG(b_u) + sum over neighbours v > u of PRG(s_uv) - sum over v < u of PRG(s_uv), modulo 2^bits. The
private mask b_u and the key behind all s_uv are shared among neighbours; after the vectors arrived, the shares of b_u
are revealed for who stayed, those of the key for who did not, and never both (double masking).

Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning (2017).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from atoll.core import Client, Message, Server
from atoll.protocols import masks, pairwise_client
from atoll.protocols.graphs import Graph
from atoll.protocols.keys import need_cryptography
from atoll.protocols.pairwise_server import pairwise_server
from atoll.protocols.secure_aggregation import Agreeing, SecureAggregation
from atoll.tree import Tree
from atoll.wire import Layout

PACKED_BITS = 32  # the wire packs integers of up to so many bits


class PairwiseMasks(SecureAggregation):
    """Double masking over a graph of neighbours, in four steps, or five against an active server."""

    needs: ClassVar[str] = "cryptography"
    seed_bytes: ClassVar[int] = masks.SEED_BYTES
    authenticates: ClassVar[bool] = True
    vector_kind: ClassVar[str] = "masked"
    of_any_length: ClassVar[frozenset[str]] = frozenset({"ids", "boxes", "seeds", "keys"})  # by neighbours

    @abstractmethod
    def graph(self, clients: int) -> Graph:
        """Who shares with whom among so many, and how many shares give a secret back."""

    def checks_consistency(self) -> bool:
        """Do clients sign whom they were told is left? Then each holds an `identity`, and is one of a directory."""
        return False

    def partners(self, clients: int) -> int:
        return min(self.graph(clients).degree, clients - 1)

    def least(self, clients: int) -> int:
        return self.graph(clients).least

    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        need_cryptography(type(self).__name__)
        return pairwise_client.pairwise_client(self, id, own, self.random_bytes(key))

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        need_cryptography(type(self).__name__)
        return pairwise_server(self, ids, self.random_bytes(key))

    def answers(self) -> tuple[str, ...]:
        signed = ("signed",) if self.checks_consistency() else ()
        return ("keys", "shares", "masked", *signed, "revealed")

    def add_mask(self, total: masks.Words, seed: bytes) -> None:
        """To words, in place; they are reduced at the end."""
        masks.add_mask(total, seed)

    def subtract_mask(self, total: masks.Words, seed: bytes) -> None:
        """From words, in place; they are reduced at the end."""
        masks.subtract_mask(total, seed)

    def pair_seed(self, key: Agreeing, public: bytes, session: bytes, id: int, peer: int) -> bytes:
        return pairwise_client.pair_seed(key, public, session, id, peer)

    def mask(self, seed: bytes, size: int, clients: int) -> Tensor:
        total = masks.zeros(size, self.bits)
        self.add_mask(total, seed)
        return masks.residues(total, self.bits)

    def masked(self, message: Message) -> Tensor | None:
        return message.body["vector"] if message.kind == self.vector_kind else None

    def layout(self, message: Message) -> Layout:
        if message.kind != self.vector_kind or self.bits > PACKED_BITS:
            return Layout.of(message.body)
        return Layout.of(message.body, vector={"kind": "bits", "bits": self.bits})
