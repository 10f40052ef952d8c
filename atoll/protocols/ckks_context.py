"""What CKKS needs of TenSEAL: parameters under which sums are exact, contexts, and ciphertexts as bytes and back.

Sums need no multiplication, so one 60-bit prime carries the ciphertext (and one more prime the keys). A number of the
sum of m ciphertexts is off by an error of deviation sqrt(m N/2 (2N/3 + 2) / 12) over the scale: t s + t', where s is
the key, and t and t' are what rounding leaves after the key's prime is divided out. In a slot that is the real part of
a product of two complex normals, so it is distributed like Laplace's, not like a normal: beyond k deviations with
probability exp(-sqrt(2) k). The scale makes half a step 32 deviations (2^-65 a number), and what the prime holds above
it is room for the sum:

| parameters | numbers a ciphertext | bytes a number | largest sum of 10, 100, 1,000 clients |
|---|---|---|---|
| N = 4,096, 60 bits (109 with the keys' prime) | 2,048 | 32.1 | 41, 40, 38 bits with its sign |
| N = 8,192, 120 bits (180 with the keys' prime) | 4,096 | 64.0 | 46 bits: TenSEAL encodes in float64 |

Both are within the standard's bounds for 128 bits of security (109 and 218).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.errors import ProtocolError
from atoll.protocols.extra import extra
from atoll.protocols.message_parts import need

_DEVIATIONS = 32  # of the error in half a step
_FLOAT_BITS = 46  # of a sum, with its sign: float64 is off by 0.03 (0.06 at 47, 0.5 at 50)
_SEAL_HEADER = struct.Struct("<HBBBBHQ")  # magic, its length, version (2), compression, reserved, bytes in all


@dataclass(frozen=True)
class CkksParameters:
    """Ring degree N, and the bits of its primes; the last one is for keys alone."""

    degree: int
    prime_bits: tuple[int, ...]

    @property
    def slots(self) -> int:
        return self.degree // 2

    def deviation(self, clients: int) -> float:
        """Of a number in the sum of so many ciphertexts, times the scale."""
        return math.sqrt(clients * self.degree / 2 * (2 * self.degree / 3 + 2) / 12)

    def scale_bits(self, clients: int) -> int:
        return math.ceil(math.log2(2 * _DEVIATIONS * self.deviation(clients)))

    def sum_bits(self, clients: int) -> int:
        """Of the largest sum of so many clients, with its sign: |sum| x scale is at most a quarter of the modulus.

        >>> [CkksParameters(4096, (60, 49)).sum_bits(clients) for clients in (10, 100, 1000)]
        [41, 40, 38]
        """
        return min(_FLOAT_BITS, sum(self.prime_bits[:-1]) - 1 - self.scale_bits(clients))


PARAMETERS = (CkksParameters(4096, (60, 49)), CkksParameters(8192, (60, 60, 60)))  # the cheaper first


def tenseal() -> Any:
    return extra("tenseal", "ckks:")


def draw_context(parameters: CkksParameters) -> Any:
    """A context with fresh keys. TenSEAL draws them from the system."""
    scheme, bits = tenseal().SCHEME_TYPE.CKKS, list(parameters.prime_bits)
    return tenseal().context(scheme, parameters.degree, coeff_mod_bit_sizes=bits, n_threads=1)


def save_context(context: Any, *, private: bool) -> bytes:
    keys = {"save_galois_keys": False, "save_relin_keys": False, "save_public_key": not private}
    return context.serialize(save_secret_key=private, **keys)  # type: ignore[no-any-return]


def load_context(data: bytes, parameters: CkksParameters, *, private: bool) -> Any:
    """A context that has the keys and the parameters that it must have, else a ProtocolError."""
    try:
        context = tenseal().context_from(data, n_threads=1)
    except (RuntimeError, ValueError) as e:
        raise ProtocolError(f"ckks: {len(data)} bytes are no context of TenSEAL. The dealer must send its own.") from e
    same = context.seal_context().data.key_parms_id() == reference(parameters).seal_context().data.key_parms_id()
    need(same, f"ckks: the key is not of the parameters agreed on, N = {parameters.degree}. Draw another.")
    need(context.has_secret_key() == private, "ckks: a private key where a public one was due, or the other way round.")
    return context


@lru_cache(maxsize=4)
def reference(parameters: CkksParameters) -> Any:
    """A context of these parameters, whose keys nobody uses: to add ciphertexts takes none."""
    return draw_context(parameters)


def encrypt(context: Any, rows: NDArray[np.float64], scale_bits: int) -> list[bytes]:
    """One ciphertext for each row, as SEAL writes it."""
    scale = float(1 << scale_bits)
    return [_seal_bytes(tenseal().ckks_vector(context, row.tolist(), scale=scale).serialize()) for row in rows]


def decrypt(context: Any, ciphertexts: Sequence[bytes], slots: int, scale_bits: int) -> NDArray[np.float64]:
    vectors = (load_ciphertext(context, data, slots, scale_bits, "server") for data in ciphertexts)
    return np.array([vector.decrypt() for vector in vectors]).reshape(-1, slots)


def add(context: Any, terms: Sequence[bytes], slots: int, scale_bits: int, senders: Sequence[str]) -> bytes:
    pairs = zip(terms, senders, strict=True)
    first, *others = (load_ciphertext(context, data, slots, scale_bits, sender) for data, sender in pairs)
    for other in others:
        first.add_(other)
    return _seal_bytes(first.serialize())


def load_ciphertext(context: Any, data: bytes, slots: int, scale_bits: int, sender: str) -> Any:
    """TenSEAL's vector around one ciphertext of SEAL.

    TenSEAL's own header is written here, never read from others: a wrong one ends the process.
    """
    wrong = f"{sender}: sent {len(data)} bytes that are no ciphertext of this key's parameters."
    need(len(data) >= _SEAL_HEADER.size, wrong)
    magic, length, *_, total = _SEAL_HEADER.unpack_from(data)
    need(magic == 0xA15E and length == _SEAL_HEADER.size and total == len(data), wrong)
    size = _varint(slots)
    head = b"\x0a" + _varint(len(size)) + size + b"\x12" + _varint(len(data))
    scale = float(1 << scale_bits)
    try:
        vector = tenseal().ckks_vector_from(context, head + data + b"\x19" + struct.pack("<d", scale))
        (inside,) = vector.ciphertext()
    except (RuntimeError, ValueError) as e:
        raise ProtocolError(wrong) from e
    fresh = inside.parms_id() == context.seal_context().data.first_parms_id()
    need(fresh and inside.size() == 2 and inside.scale == scale and inside.is_ntt_form(), wrong)
    return vector


def _seal_bytes(vector: bytes) -> bytes:
    """The ciphertext in TenSEAL's vector: the message {1: sizes, 2: ciphertext, 3: scale} of protobuf."""
    at = 2 + vector[1]  # behind the sizes, which are short
    at, length = at + 1, 0
    for shift in range(0, 35, 7):
        length |= (vector[at] & 0x7F) << shift
        at += 1
        if vector[at - 1] < 0x80:
            break
    return vector[at : at + length]


def _varint(number: int) -> bytes:
    """Protobuf's integers: seven bits a byte, the lowest first."""
    more, byte = number >> 7, number & 0x7F
    return bytes([byte | 0x80]) + _varint(more) if more else bytes([byte])
