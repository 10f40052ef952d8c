"""LightSecAgg: masks are coded among all clients, and the sum of the survivors' masks is recovered in one shot.

Client i cuts its mask z_i into U - T pieces, adds T uniform ones, and sends every client one coded share of them. After
x_i + z_i arrived, each survivor adds up its shares of the survivors' masks; any U such sums give the sum of the masks.
The field holds the sum of all vectors; the server reduces it modulo 2^bits, and sees it before.

So et al., LightSecAgg: a lightweight and versatile design for secure aggregation in federated learning (2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from atoll.core import Client, Message, Server
from atoll.errors import ConfigError
from atoll.protocols.keys import need_cryptography
from atoll.protocols.light_secagg_roles import CodedMasks, light_client, light_server
from atoll.protocols.masks import SEED_BYTES, check_bits
from atoll.protocols.mersenne import MersenneField
from atoll.protocols.secagg import Bits
from atoll.protocols.secure_aggregation import SecureAggregation, Security, who_may_collude
from atoll.protocols.threshold import Threshold, threshold_of
from atoll.tree import Tree
from atoll.wire import Encoding, Layout

_EXPONENTS = (31, 61)
_ELEMENTS = {"masked": "vector", "recovered": "share"}  # where a message has elements of the field, by its kind


@dataclass(frozen=True)
class LightSecAgg(SecureAggregation):
    """The sum of all vectors whose clients stayed until theirs arrived, if U = `threshold` stay to the end.

    >>> LightSecAgg(bits=24).modulus(100) == 2**31 - 1, LightSecAgg(bits=32).modulus(100) == 2**61 - 1
    (True, True)
    """

    needs: ClassVar[str] = "cryptography"
    seed_bytes: ClassVar[int] = SEED_BYTES
    authenticates: ClassVar[bool] = True
    vector_kind: ClassVar[str] = "masked"

    bits: Bits = 32
    threshold: Threshold = 2 / 3  # U: more than this share of the clients; from 1 on: so many
    colluding: Annotated[float, Field(ge=0, lt=1)] = 0.5  # T: the share of the clients that may collude
    insecure_seed: bool = False

    def __post_init__(self) -> None:
        check_bits(self.bits)
        if self.threshold <= 0 or not 0 <= self.colluding < 1:
            raise ConfigError(
                f"secure.threshold, secure.protocol.colluding: {self.threshold} and {self.colluding} do not fit. A "
                "threshold is above 0, and colluding a share of the clients below 1."
            )

    def field(self, clients: int) -> MersenneField:
        """The least of the two that holds the sum of so many vectors."""
        for exponent in _EXPONENTS:
            if clients * ((1 << self.bits) - 1) < (1 << exponent) - 1:
                return MersenneField(exponent)
        most = _EXPONENTS[-1] - clients.bit_length()
        raise ConfigError(
            f"secure.fixed_point.bits: the sum of {clients} vectors of {self.bits} bits is above the prime 2^61 - 1. "
            f"Use at most {most} bits for so many clients, or protocol = 'secagg', which has no prime."
        )

    def coding(self, clients: int) -> CodedMasks:
        """U and T of so many clients."""
        u = threshold_of(self.threshold, clients)
        t = min(floor(self.colluding * clients + 1e-9), u - 1)
        return CodedMasks(self.field(clients), self.bits, u, t)

    def least(self, clients: int) -> int:
        return self.coding(clients).pieces

    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        need_cryptography("LightSecAgg")
        return light_client(self.coding, id, own, self.random_bytes(key))

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        need_cryptography("LightSecAgg")
        return light_server(self.coding(len(ids)), ids, self.random_bytes(key))

    def answers(self) -> tuple[str, ...]:
        return ("keys", "coded", "masked", "recovered")

    def more_than_the_sum(self) -> str:
        return "the server sees the sum before it is reduced, and with it how many numbers were negative"

    def modulus(self, clients: int) -> int:
        return self.field(clients).prime

    def mask(self, seed: bytes, size: int, clients: int) -> Tensor:
        return torch.from_numpy(self.field(clients).mask(seed, size).astype(np.int64))

    def masked(self, message: Message) -> Tensor | None:
        return message.body["vector"].long() if message.kind == self.vector_kind else None

    def layout(self, message: Message) -> Layout:
        path = _ELEMENTS.get(message.kind)
        if path is None or message.body[path].dtype != torch.int32:
            return Layout.of(message.body)
        return Layout.of(message.body, **{path: Encoding(kind="bits", bits=_EXPONENTS[0])})

    def security(self, clients: int) -> Security:
        coding = self.coding(clients)
        return Security(
            level=2,
            server_learns=f"the sum over those whose vectors arrived, not reduced modulo 2^{self.bits} (so how often "
            f"it wraps around, too), and who they are; at least {coding.pieces} of {clients}",
            clients_learn="who takes part and who is left; nothing of others' vectors beyond what the server sends",
            assumes=f"The server keeps to the protocol (it is curious, not lying). "
            f"{who_may_collude(coding.noise, clients, coding.pieces)} X25519, HKDF-SHA256, AES-256, ChaCha20-Poly1305.",
        )
