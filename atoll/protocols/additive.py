"""Additive secret sharing with K splits, as OARF has it, over integers modulo 2^bits instead of floats.

Client i cuts g_i into K parts, K - 1 of them uniform: g_i = g_i1 + ... + g_iK (OARF, equation 1). Part j goes to client
(i + j) mod N, the last one stays. Each adds up what it then has, g'_i = g_iK + sum over j of g_(i-j mod N)j, and sends
that to the server (equation 2, where the paper's indices are modulo K: the sum is right for modulo N). The sum of all
g'_i is that of all g_i.

Nobody may drop out once parts are sent: they are then in nobody's sum, or in sums without their counterpart. So that a
round needs one number of clients, it is all of them, from the first message on.

Hu et al., The OARF benchmark suite (2022), section 4.5.4.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from atoll.core import Client, Message, Server
from atoll.errors import ConfigError, ProtocolError
from atoll.protocols import masks
from atoll.protocols.keys import KEY_BYTES, SESSION_BYTES, KeyPair, need_cryptography
from atoll.protocols.mailbox import BOXES, Mailbox, introduce, relay
from atoll.protocols.message_fields import BYTES, NUMBERS, begin, id_row, one_length, read_all, read_start, say
from atoll.protocols.pairwise import PACKED_BITS
from atoll.protocols.secagg import Bits
from atoll.protocols.secure_aggregation import RandomBytes, SecureAggregation, Security
from atoll.tree import Tree
from atoll.wire import Layout


@dataclass(frozen=True)
class AdditiveSharing(SecureAggregation):
    """The sum of all vectors, if all stay to the end."""

    needs: ClassVar[str] = "cryptography"
    seed_bytes: ClassVar[int] = masks.SEED_BYTES
    authenticates: ClassVar[bool] = True
    vector_kind: ClassVar[str] = "added"

    bits: Bits = 32
    splits: Annotated[int, Field(ge=2)] = 2  # K: parts of each vector, its own among them
    compact: bool = False  # send the 32 bytes that a uniform part is made of in place of the part
    insecure_seed: bool = False

    def __post_init__(self) -> None:
        masks.check_bits(self.bits)
        if self.splits < 2:
            raise ConfigError(
                f"secure.protocol.splits: must be at least 2 (got {self.splits}). One part is the vector itself."
            )

    def least(self, clients: int) -> int:
        if clients < self.splits:
            raise ConfigError(
                f"secure.protocol.splits: {self.splits} parts for {clients} clients. Each goes to another one: use "
                f"{clients} or fewer."
            )
        return clients

    def partners(self, clients: int) -> int:
        return self.splits - 1

    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        need_cryptography("AdditiveSharing")
        return _client(self, id, own, self.random_bytes(key))

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        need_cryptography("AdditiveSharing")
        for caution in self.cautions(len(ids)):
            warnings.warn(caution, stacklevel=2)
        return _server(self, ids, self.random_bytes(key))

    def answers(self) -> tuple[str, ...]:
        return ("keys", "parts", "added")

    def mask(self, seed: bytes, size: int, clients: int) -> Tensor:
        return masks.residues(masks.mask(seed, size, self.bits), self.bits)

    def masked(self, message: Message) -> Tensor | None:
        return message.body["vector"] if message.kind == self.vector_kind else None

    def layout(self, message: Message) -> Layout:
        if message.kind != self.vector_kind or self.bits > PACKED_BITS:
            return Layout.of(message.body)
        return Layout.of(message.body, vector={"kind": "bits", "bits": self.bits})

    def security(self, clients: int) -> Security:
        around = min(2 * (self.splits - 1), clients - 1)
        two = " With two clients each learns the other's vector from the sum." if clients == 2 else ""
        return Security(
            level=2,
            server_learns=f"the sum over all {clients} clients, and who they are",
            clients_learn=f"{self.splits - 1} uniform parts of others' vectors, which say nothing of them; and what "
            f"the server sends.{two}",
            assumes="The server keeps to the protocol (it is curious, not lying), and nobody drops out. Clients that "
            "collude with the server learn the sum of the others, and of any of them that they part from the rest of "
            f"the ring: one client's vector where {'the one client' if around == 1 else f'all {around} clients'} that "
            "it exchanged parts with collude. X25519, HKDF-SHA256, AES-256, ChaCha20-Poly1305.",
        )

    def receivers(self, ids: Sequence[int], id: int) -> list[int]:
        """Of this client's parts, in the order j = 1 to K - 1."""
        at = ids.index(id)
        return [ids[(at + j) % len(ids)] for j in range(1, self.splits)]


def _client(protocol: AdditiveSharing, id: int, own: Tree, random: RandomBytes) -> Client:
    where = f"client {id}"
    total = masks.words(own["vector"], protocol.bits, f"{where}, vector")
    session, clients = read_start((yield None), where)
    mailbox = Mailbox(id, session, KeyPair.draw(random))
    mailbox.meet((yield mailbox.advertisement()), protocol.least(clients), clients)

    ids, texts = list(mailbox.publics), {}
    for peer in protocol.receivers(ids, id):
        seed = random(masks.SEED_BYTES)
        part = masks.mask(seed, len(total), protocol.bits)
        total -= part
        texts[peer] = seed if protocol.compact else part.tobytes()
    senders = [peer for peer in ids if id in protocol.receivers(ids, peer)]
    width = masks.SEED_BYTES if protocol.compact else total.nbytes
    opened = mailbox.open((yield mailbox.sealed("parts", texts)), width, senders)
    if len(opened) < len(senders):
        raise ProtocolError(f"{where}: {len(opened)} parts of {len(senders)} came. Nobody may drop out: begin again.")
    for text in opened.values():
        if protocol.compact:
            masks.add_mask(total, text)
        else:
            total += np.frombuffer(text, total.dtype)
    yield say("added", session, vector=masks.residues(total, protocol.bits))
    raise ProtocolError(f"{where}: a message after its sum was sent. It answers once in a round.")


def _server(protocol: AdditiveSharing, ids: Sequence[int], random: RandomBytes) -> Server:
    session, least = random(SESSION_BYTES), protocol.least(len(ids))
    keys = read_all((yield begin(session, ids)), "keys", session, ids, least, public=(BYTES, (KEY_BYTES,)))
    everyone = list(keys)
    receivers = {id: sorted(protocol.receivers(everyone, id)) for id in everyone}
    parts = read_all((yield introduce(session, keys)), "parts", session, everyone, least, **BOXES)
    boxes = relay(session, parts, receivers)
    vectors = read_all((yield boxes), "added", session, everyone, least, vector=(NUMBERS, (None,)))
    total = masks.zeros(one_length(vectors), protocol.bits)
    for id, body in vectors.items():
        total += masks.words(body["vector"], protocol.bits, f"server, from client {id}")
    return {"sum": masks.residues(total, protocol.bits), "ids": id_row(everyone)}
