"""Is a client's vector hidden in all that it sends, and in all that others are told?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from atoll import rng, tree
from atoll.core import Client, Message, Protocol, Server
from atoll.protocols import SecureAggregation, Transcript, run_protocol
from atoll.testing.assertions import need
from atoll.tree import Tree

_KEY = rng.key("protocol", "secrecy")
_PIECE_BITS = 128  # of a vector in a row, which nobody meets by chance
_LEAST_NUMBERS = 64
_FEW = 8  # bytes that follow a vector and no key: of good masks one in 2^8 does in a round, one in 2^16 in both
_CAUSE = "a vector that is sent in clear, packed, or under a mask of public data"


def hides_vectors(protocol: SecureAggregation, held: Mapping[int, Tree]) -> str | None:
    """At level 2 and above: no message holds a client's vector, or follows from it alone.

    - Of a random vector no 128 bits in a row stand in a message: as integers or floats of any width and either order of
      bytes, negated, complemented, or packed.
    - Two clients' vectors change, and their sum does not: what differs in a message must differ with the clients' keys,
      too, under one and the same draw of the server. So a mask that follows from the session is refused, and every
      encoding that has no key in it.

    Not seen: a mask that is no secret for another reason, as one whose seed is sent along.
    """
    if protocol.security(len(held)).level < 2:
        return None
    own = _vectors(protocol, held)
    _, transcript = run_protocol(protocol, own, _KEY)
    for id, x in own.items():
        pieces = list(_pieces(x["vector"], protocol.bits))
        for message, data in _travelled(transcript):
            shown = sum(piece in data for piece in pieces)
            what = f"no message holds the vector of a client ({message.kind!r})"
            need(shown == 0, what, f"{shown} pieces of client {id}'s", "none", _CAUSE)
    _need_keys_in_what_follows_from_vectors(protocol, own)
    return "no message holds the vector of a client"


def _need_keys_in_what_follows_from_vectors(protocol: SecureAggregation, own: Mapping[int, Tree]) -> None:
    moved = _moved(protocol, own)
    runs = [
        [_leaves(run_protocol(OtherKeys(protocol, salt), x, _KEY)[1]) for salt in ("one", "two")] for x in (own, moved)
    ]
    (a, b), (c, d) = runs
    for place in sorted(set(a) & set(b) & set(c) & set(d), key=str):
        if len({len(run[place]) for run in (a, b, c, d)}) > 1:
            continue
        keyless = (a[place] == b[place]) & (c[place] == d[place]) & (a[place] != c[place])
        direction, step, id, name = place
        what = f"what follows from a vector follows from keys ({name!r} of client {id}, {direction} in step {step + 1})"
        most = max(_FEW, len(keyless) // 64)
        need(int(keyless.sum()) <= most, what, f"{int(keyless.sum())} bytes without", f"at most {most}", _CAUSE)


@dataclass(frozen=True)
class OtherKeys(Protocol):
    """The same server, with the same draws, and clients with other ones."""

    inner: Protocol
    salt: str

    def client(self, id: int, own: Tree, key: Tensor) -> Client:
        return self.inner.client(id, own, rng.fold_name(key, self.salt))

    def server(self, ids: Sequence[int], key: Tensor) -> Server:
        return self.inner.server(ids, key)

    def enrol(self, ids: Sequence[int], key: Tensor) -> Mapping[int, Tree]:
        return self.inner.enrol(ids, key)


def _vectors(protocol: SecureAggregation, held: Mapping[int, Tree]) -> dict[int, Tree]:
    """Uniform residues, so many that a piece of them is no coincidence."""
    size = max(_LEAST_NUMBERS, 4 * _in_a_row(protocol.bits))
    return {
        id: {**x, "vector": _uniform(rng.fold_host(rng.fold_name(_KEY, "vectors"), id), size, protocol.bits)}
        for id, x in held.items()
    }


def _moved(protocol: SecureAggregation, own: Mapping[int, Tree]) -> dict[int, Tree]:
    """Other vectors of the same sum: what one of a pair has more, the other has less."""
    ids, modulus, moved = sorted(own), 1 << protocol.bits, dict(own)
    for a, b in zip(ids[::2], ids[1::2], strict=False):
        x, y = own[a]["vector"], own[b]["vector"]
        by = _uniform(rng.fold_host(rng.fold_name(_KEY, "moved"), a), len(x), protocol.bits)
        moved[a] = {**own[a], "vector": (x + by) % modulus}
        moved[b] = {**own[b], "vector": (y - by) % modulus}
    return moved


def _uniform(key: Tensor, size: int, bits: int) -> Tensor:
    high, low = (rng.bits(rng.fold_name(key, part), (size,)).long() & 0xFFFF_FFFF for part in ("high", "low"))
    return (high << 31 ^ low) & (1 << bits) - 1


def _in_a_row(bits: int) -> int:
    """Numbers of a piece: a multiple of 8, so that packed ones begin with a byte."""
    return 8 * -(-_PIECE_BITS // (8 * bits))


def _pieces(vector: Tensor, bits: int) -> Iterator[bytes]:
    """Of every encoding, each piece of a vector."""
    size = _in_a_row(bits)
    for begin in range(0, len(vector) - size + 1, size):
        x = vector[begin : begin + size].numpy()
        for numbers in (x, x[::-1], -x % (1 << bits), (1 << bits) - 1 - x, x - (1 << bits - 1), -x):
            yield from _encodings(numbers, bits)


def _encodings(numbers: np.ndarray, bits: int) -> Iterator[bytes]:  # type: ignore[type-arg]
    for width in (1, 2, 4, 8):
        if 8 * width >= bits:
            cut = numbers.astype(f"<i{width}")
            yield from (cut.tobytes(), cut.byteswap().tobytes())
    for float_type in ("<f4", "<f8"):
        real = numbers.astype(float_type)
        yield from (real.tobytes(), real.byteswap().tobytes())
    residues = (numbers % (1 << bits)).astype("<u8").view(np.uint8).reshape(-1, 8)
    low_first = np.unpackbits(residues, axis=1, count=bits, bitorder="little")
    for rows in (low_first, low_first[:, ::-1]):
        yield from (np.packbits(rows, bitorder=order).tobytes() for order in ("little", "big"))


def _travelled(transcript: Transcript) -> Iterator[tuple[Message, bytes]]:
    for _, _, _, message in _messages(transcript):
        yield message, b"|".join(_bytes(x) for _, x in tree.paths(message.body))


def _leaves(transcript: Transcript) -> dict[tuple[str, int, int, str], np.ndarray]:  # type: ignore[type-arg]
    """Bytes of every tensor, by direction, step, client and place."""
    return {
        (direction, step, id, f"{message.kind}/{path}"): np.frombuffer(_bytes(x), np.uint8)
        for direction, step, id, message in _messages(transcript)
        for path, x in tree.paths(message.body)
    }


def _messages(transcript: Transcript) -> Iterable[tuple[str, int, int, Message]]:
    for direction, steps in (("down", transcript.down), ("up", transcript.up)):
        for step, messages in enumerate(steps):
            for id, message in messages.items():
                yield direction, step, id, message


def _bytes(x: Tensor) -> bytes:
    return torch.as_tensor(x).detach().contiguous().numpy().tobytes()
