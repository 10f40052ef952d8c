"""Several residues in one large integer, each in a slot so wide that sums stay in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.errors import ConfigError, ProtocolError
from atoll.protocols.secure_aggregation import RandomBytes

Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Slots:
    """Slot i of an integer takes its bits i w to (i + 1) w - 1, w = bits + blinding_bits + ceil(log2 clients).

    `clients` integers add up without a carry into the next slot. With blinding every residue gets a random multiple of
    2^bits on top, so that a sum says nothing but itself modulo 2^bits.

    Without guard bits w = bits. Residues are then read as numbers from -2^(bits-1) on, and written with 2^(bits-1) on
    top; what an integer stands for is itself less `centre`, which is 2^(bits-1) in every slot. Sums that end within
    [-2^(bits-1), 2^(bits-1)) have no carries, however far they went on the way; one outside would put a carry into its
    neighbour.

    >>> Slots(bits=32, clients=100, capacity_bits=2047).per_integer
    52
    >>> Slots(bits=32, clients=100, capacity_bits=2047, guarded=False).per_integer
    63
    """

    bits: int
    clients: int
    capacity_bits: int  # of one integer
    blinding_bits: int = 0
    packed: bool = True  # False: one residue in each integer
    guarded: bool = True  # False: sums are known to fit

    def __post_init__(self) -> None:
        if self.width > self.capacity_bits:
            raise ConfigError(
                f"secure.fixed_point.bits: a sum of {self.clients} clients takes {self.width} bits, a plaintext has "
                f"{self.capacity_bits}. Use fewer bits, or a longer key."
            )

    @property
    def width(self) -> int:
        return self.bits + self.blinding_bits + (self.clients - 1).bit_length() if self.guarded else self.bits

    @property
    def centre(self) -> int:
        """What is to be taken from a packed integer, and added to a sum of them."""
        return 0 if self.guarded else sum(1 << i * self.width + self.bits - 1 for i in range(self.per_integer))

    @property
    def per_integer(self) -> int:
        return self.capacity_bits // self.width if self.packed else 1

    @property
    def integer_bytes(self) -> int:
        """That hold one packed integer, or a sum of them."""
        return -(-self.per_integer * self.width // 8)

    def integers(self, residues: int) -> int:
        """How many integers hold so many residues."""
        return -(-residues // self.per_integer)

    def pack(self, residues: Integers, random: RandomBytes) -> Bytes:
        """(integers, integer_bytes), little-endian; what is left of the last integer is 0 (and blinded)."""
        rows = self.integers(len(residues)) * self.per_integer
        filled = np.zeros(rows, np.uint64)
        filled[: len(residues)] = residues.astype(np.uint64)
        filled ^= self._half
        slots = np.zeros((rows, self.width), np.uint8)
        slots[:, : self.bits] = _bits(filled, self.bits)
        if self.blinding_bits:
            drawn = np.frombuffer(random(-(-rows * self.blinding_bits // 8)), np.uint8)
            above = np.unpackbits(drawn, count=rows * self.blinding_bits).reshape(rows, self.blinding_bits)
            slots[:, self.bits : self.bits + self.blinding_bits] = above
        return np.packbits(slots.reshape(-1, self.per_integer * self.width), axis=1, bitorder="little")

    def unpack(self, packed: Bytes, residues: int) -> Integers:
        """The residues modulo 2^bits of packed integers, or of their sum.

        What is left of the last integer holds nothing, which is checked: of a sum that was changed it would not.
        """
        if packed.shape != (self.integers(residues), self.integer_bytes):
            raise ProtocolError(
                f"slots: {packed.shape} bytes where {(self.integers(residues), self.integer_bytes)} hold {residues} "
                "residues. Both sides need the same number of clients and parameters."
            )
        slots = np.unpackbits(packed, axis=1, count=self.per_integer * self.width, bitorder="little")
        rows = slots.reshape(-1, self.width)
        words = _integers(rows[:, : self.bits]) ^ np.int64(self._half)
        above = rows[residues:, self.bits :] if not self.blinding_bits else rows[:0]
        if words[residues:].any() or above.any():
            raise ProtocolError("slots: what must be empty is not. A ciphertext was changed: begin a new round.")
        return words[:residues]

    @property
    def _half(self) -> np.uint64:
        return np.uint64(0 if self.guarded else 1 << self.bits - 1)


def pack_residues(residues: Integers, bits: int) -> Bytes:
    """Residues below 2^bits, `bits` each, the lowest first: what travels.

    >>> pack_residues(np.array([1, 2, 3]), 3).tolist(), unpack_residues(np.array([209, 0], np.uint8), 3, 3).tolist()
    ([209, 0], [1, 2, 3])
    """
    return np.packbits(_bits(residues.astype(np.uint64), bits).ravel(), bitorder="little")


def unpack_residues(packed: Bytes, bits: int, residues: int) -> Integers:
    """What `pack_residues` packed."""
    if packed.shape != (-(-residues * bits // 8),):
        raise ProtocolError(f"residues: {packed.shape} bytes are not {residues} residues of {bits} bits each.")
    return _integers(np.unpackbits(packed, count=residues * bits, bitorder="little").reshape(residues, bits))


def _bits(words: NDArray[np.uint64], bits: int) -> Bytes:
    """(n, bits), the lowest first."""
    return np.unpackbits(words.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, count=bits, bitorder="little")


def _integers(rows: Bytes) -> Integers:
    """Back from (n, bits); bits at most 62."""
    words = np.zeros((len(rows), 8), np.uint8)
    packed = np.packbits(rows, axis=1, bitorder="little")
    words[:, : packed.shape[1]] = packed
    return words.view("<u8").ravel().astype(np.int64)
