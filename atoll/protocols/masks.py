"""Masks: residues modulo 2^bits from a seed of 32 bytes, which is the key of AES-256 in counter mode.

Words are as narrow as the bits allow and wrap around by themselves: 2^bits divides the modulus of the word, so that
sums are reduced once, at the end. Each mask is one stream of one cipher, added in blocks that stay in the cache.

>>> total = zeros(3, 32)
>>> add_mask(total, bytes(32)); subtract_mask(total, bytes(32))
>>> residues(total, 32)
tensor([0, 0, 0])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.errors import ConfigError, ProtocolError

Words: TypeAlias = NDArray[Any]  # unsigned, of 8 to 64 bits

SEED_BYTES = 32
LEAST_BITS, MOST_BITS = 2, 62
_BLOCK = 1 << 18  # bytes
_ZEROS = bytes(_BLOCK)


def check_bits(bits: int) -> None:
    if not LEAST_BITS <= bits <= MOST_BITS:
        raise ConfigError(
            f"secure.fixed_point.bits: {bits} do not fit. Sums are modulo 2^{LEAST_BITS} to 2^{MOST_BITS}: use 32."
        )


def word(bits: int) -> np.dtype[Any]:
    """The narrowest unsigned integer that holds residues modulo 2^bits."""
    return np.dtype(next(f"<u{size}" for size in (1, 2, 4, 8) if 8 * size >= bits))


def zeros(size: int, bits: int) -> Words:
    return np.zeros(size, word(bits))


def words(vector: Tensor, bits: int, where: str) -> Words:
    """A copy of a vector of residues; a ProtocolError where it is none."""
    if vector.dtype != torch.int64 or vector.dim() != 1:
        raise ProtocolError(f"{where}: {tuple(vector.shape)} of {vector.dtype}. A vector is (n,) of torch.int64.")
    if len(vector) and not 0 <= int(vector.min()) <= int(vector.max()) < 1 << bits:
        least, greatest = int(vector.min()), int(vector.max())
        raise ProtocolError(f"{where}: from {least} to {greatest}. Residues are from 0 to 2^{bits} - 1: reduce first.")
    return vector.numpy().astype(word(bits))


def residues(total: Words, bits: int) -> Tensor:
    """As they travel: int64, below 2^bits."""
    return torch.from_numpy(np.bitwise_and(total, total.dtype.type((1 << bits) - 1)).astype(np.int64))


def mask(seed: bytes, size: int, bits: int) -> Words:
    """Words whose lowest bits are the mask."""
    total = zeros(size, bits)
    add_mask(total, seed)
    return total


def add_mask(total: Words, seed: bytes) -> None:
    """In place; reduce with `residues`."""
    _each_block(total, seed, np.add)


def subtract_mask(total: Words, seed: bytes) -> None:
    """In place; reduce with `residues`."""
    _each_block(total, seed, np.subtract)


def _each_block(total: Words, seed: bytes, operation: Callable[..., Any]) -> None:
    at = 0
    for stream in _stream(seed, total.nbytes, total.dtype):
        here = total[at : at + len(stream)]
        operation(here, stream, out=here)
        at += len(stream)


def _stream(seed: bytes, size: int, dtype: np.dtype[Any]) -> Iterator[Words]:
    """The key stream in blocks; each is gone when the next one is asked for."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    if len(seed) != SEED_BYTES:
        raise ProtocolError(f"mask: a seed of {len(seed)} bytes. AES-256 takes {SEED_BYTES}: derive it with HKDF.")
    cipher = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()  # a key makes one mask: counter from 0
    block = min(size, _BLOCK)
    buffer = bytearray(block + 15)  # OpenSSL wants room for a block more
    view = np.frombuffer(buffer, np.uint8)
    for begin in range(0, size, _BLOCK):
        length = min(_BLOCK, size - begin)
        cipher.update_into(memoryview(_ZEROS)[:length], buffer)
        yield view[:length].view(dtype)
