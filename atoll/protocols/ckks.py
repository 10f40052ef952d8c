"""Sums under CKKS (Cheon, Kim, Kim and Song, 2017), by TenSEAL: approximate numbers that round to the exact sum.

Li and Micciancio (2021) find the private key from decrypted numbers with their errors. Here clients round before they
tell, so the server sees integers without errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from atoll.errors import ConfigError
from atoll.protocols import ckks_context
from atoll.protocols.ckks_context import PARAMETERS, CkksParameters
from atoll.protocols.homomorphic import HomomorphicAggregation
from atoll.protocols.message_parts import leaf, need, octets, to_tensor
from atoll.protocols.secure_aggregation import RandomBytes, Security
from atoll.protocols.threshold import Threshold, threshold_of
from atoll.tree import Tree

_NEAR = 0.4  # of a step: what lies further from an integer was not encrypted under this key


@dataclass(frozen=True)
class CkksAggregation(HomomorphicAggregation):
    """CKKS without multiplications. TenSEAL draws its own randomness from the system, also with `insecure_seed`.

    `key` is not "shared": TenSEAL has no partial decryption, and shares of the key's bytes would be put together at one
    client, who then is a holder. A dealer that makes up a context can end the other clients' processes in TenSEAL.
    """

    needs: ClassVar[str] = "tenseal"
    of_any_length: ClassVar[frozenset[str]] = frozenset({"ciphertexts/data"})  # SEAL's are compressed

    bits: Annotated[int, Field(ge=2, le=45)] = 32
    key_holders: Literal["group", "holder"] = "group"
    threshold: Threshold = 2
    insecure_seed: bool = False

    def __post_init__(self) -> None:
        ckks_context.tenseal()
        if self.key_holders not in ("group", "holder"):
            raise ConfigError(
                f"secure.protocol.key_holders: {self.key_holders!r} is not for ckks. Use 'group', 'holder', or "
                "protocol 'paillier'."
            )

    def parameters(self, clients: int) -> CkksParameters:
        """The cheapest parameters under which sums of so many clients are exact; where none are, a ConfigError."""
        wanted = self.bits + (clients - 1).bit_length()
        for parameters in PARAMETERS:
            if wanted <= parameters.sum_bits(clients):
                return parameters
        most = PARAMETERS[-1].sum_bits(clients) - (clients - 1).bit_length()
        raise ConfigError(
            f"secure.fixed_point.bits: ckks would round sums of {clients} clients with {self.bits} bits each. Use at "
            f"most {most} bits, or protocol = 'paillier', which is exact."
        )

    def security(self, clients: int) -> Security:
        parameters = self.parameters(clients)
        hard = f"Ring-LWE with N = {parameters.degree} and a modulus of {sum(parameters.prime_bits)} bits is hard."
        learns = "The sum modulo 2^bits, and who is in it. Not the errors of CKKS, which would give away the key."
        learns += f" At least {threshold_of(self.threshold, clients)} of {clients} are in it."
        return Security(2, learns, _CLIENTS_LEARN[self.key_holders], f"{_ASSUMES[self.key_holders]} {_HONEST} {hard}")

    def draw_keys(self, clients: int, random: RandomBytes) -> tuple[Tree, bytes]:
        context = ckks_context.draw_context(self.parameters(clients))
        public = ckks_context.save_context(context, private=False)
        return {"context": to_tensor(public)}, ckks_context.save_context(context, private=True)

    def encrypt(self, public: Tree, residues: Tensor, clients: int, random: RandomBytes) -> Tree:
        parameters = self.parameters(clients)
        context = ckks_context.load_context(octets(public, "context", "dealer"), parameters, private=False)
        rows = np.zeros((self._rows(len(residues), clients), parameters.slots))
        centred = residues.numpy() - ((residues.numpy() >> self.bits - 1) << self.bits)  # from -2^(bits-1) on
        rows.reshape(-1)[: len(residues)] = centred
        return _body(ckks_context.encrypt(context, rows, parameters.scale_bits(clients)))

    def add(self, public: Tree, uploads: Mapping[int, Tree], numbers: int, clients: int) -> Tree:
        parameters, count = self.parameters(clients), self._rows(numbers, clients)
        senders = [f"client {id}" for id in uploads]
        columns = zip(*(_ciphertexts(uploads[id], count, f"client {id}") for id in uploads), strict=True)
        context, scale_bits = ckks_context.reference(parameters), parameters.scale_bits(clients)
        return _body([ckks_context.add(context, terms, parameters.slots, scale_bits, senders) for terms in columns])

    def decrypt(self, public: Tree, private: bytes, total: Tree, numbers: int, clients: int) -> Tensor:
        parameters = self.parameters(clients)
        context = ckks_context.load_context(private, parameters, private=True)
        ciphertexts = _ciphertexts(total, self._rows(numbers, clients), "server")
        sums = ckks_context.decrypt(context, ciphertexts, parameters.slots, parameters.scale_bits(clients)).ravel()
        steps = np.rint(sums)
        exact = np.abs(sums - steps).max(initial=0) < _NEAR and not steps[numbers:].any()
        need(bool(exact), "ckks: the sum decrypts to no integers. It was encrypted under another key, or changed.")
        return torch.from_numpy(steps[:numbers].astype(np.int64) & (1 << self.bits) - 1)

    def _rows(self, numbers: int, clients: int) -> int:
        return -(-numbers // self.parameters(clients).slots)


def _body(ciphertexts: Sequence[bytes]) -> Tree:
    lengths = torch.tensor([len(data) for data in ciphertexts], dtype=torch.int64)
    return {"data": to_tensor(b"".join(ciphertexts)), "lengths": lengths}


def _ciphertexts(body: Tree, count: int, sender: str) -> list[bytes]:
    data, lengths = octets(body, "data", sender), leaf(body, "lengths", torch.int64, 1, sender).tolist()
    need(len(lengths) == count, f"{sender}: sent {len(lengths)} ciphertexts where {count} were due.")
    need(min(lengths, default=0) >= 0 and sum(lengths) == len(data), f"{sender}: its ciphertexts are cut.")
    ends = np.cumsum([0, *lengths]).tolist()
    return [data[a:b] for a, b in pairwise(ends)]


_CLIENTS_LEARN = {
    "group": "Who takes part; two of them decrypt, and see the sum before it is reduced modulo 2^bits, and its errors.",
    "holder": "Who takes part; the dealer decrypts, and sees the sum before it is reduced modulo 2^bits.",
}
_ASSUMES = {
    "group": "Every client has the private key, so none of them may collude with the server. Whoever sees a sum of two "
    "knows the other's vector from its own.",
    "holder": "One client has the private key, and may not collude with the server; the others may, and learn no more "
    "than the sum without their own vectors, which may be one client's vector.",
}
_HONEST = "The server keeps to the protocol: it relays keys, and has the sum decrypted, not one client's ciphertext."
