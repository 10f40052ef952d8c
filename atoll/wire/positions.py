"""Strictly increasing positions below a limit, as Rice codes of their gaps.

A gap g is the number of positions left out before the next one. Its remainder is its lowest r bits, its quotient
q = g >> r. All remainders come first, packed; then every quotient in unary: q zeros and a one. r is fixed by how many
positions there are and by the limit, so that r needs no room and the length has a bound. With r = 0, which dense
positions have, the code is a bitmap that ends with its last one; with any r it is never longer than a bitmap.

Rice and Plaunt, Adaptive variable-length coding for efficient compression of spacecraft television data (1971).
"""

import importlib.util
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.errors import WireError
from atoll.wire.bit_packing import pack, packed_bytes, unpack

DEVICES = {"cuda"}  # where a kernel can be launched
_FOUND = importlib.util.find_spec("triton") is not None
_BLOCK = 1024


def rice_parameter(count: int, limit: int) -> int:
    """The least r for which one more bit in every remainder would save no bits of quotients, at worst.

    >>> rice_parameter(10, 1000)
    6
    """
    r = 0
    while (limit - count) >> (r + 1) > count:
        r += 1
    return r


def most_code_bytes(count: int, limit: int) -> int:
    """No positions need more: gaps add up to at most limit - count."""
    r = rice_parameter(count, limit) if count else 0
    return packed_bytes(count * (r + 1) + ((limit - count) >> r), 1) if count else 0


def code_bytes(positions: Tensor, limit: int) -> Tensor:
    """How long the code is, without making it: int64, and vmappable."""
    count = positions.shape[0]
    if count == 0:
        return torch.zeros((), dtype=torch.int64, device=positions.device)
    r = rice_parameter(count, limit)
    if _FOUND and positions.device.type in DEVICES:
        by_kernel: Tensor = _code_bytes(positions.long(), r)
        return by_kernel
    p = positions.long()
    quotients = (p[0] >> r) + ((p[1:] - p[:-1] - 1) >> r).sum()
    return (quotients + (count * (r + 1) + 7)) // 8


@torch.library.custom_op("atoll::position_code_bytes", mutates_args=())
def _code_bytes(positions: Tensor, r: int) -> Tensor:
    """(..., count) to (...): by one kernel instead of nine."""
    from atoll.wire import position_kernels

    positions, count = positions.contiguous(), positions.shape[-1]
    lengths = positions.new_empty(positions.shape[:-1])
    block = min(_BLOCK, max(32, 1 << (count - 1).bit_length()))
    position_kernels.rice_bytes[(lengths.numel(),)](positions, lengths, count, r, BLOCK=block)
    return lengths


@_code_bytes.register_fake
def _(positions: Tensor, r: int) -> Tensor:
    return positions.new_empty(positions.shape[:-1])


@_code_bytes.register_vmap
def _(info: Any, in_dims: tuple[Any, ...], positions: Tensor, r: int) -> tuple[Tensor, int]:
    return _code_bytes(positions.movedim(in_dims[0], 0), r), 0


def encode_positions(positions: NDArray[np.int64], limit: int) -> bytes:
    count = len(positions)
    if count == 0:
        return b""
    r = rice_parameter(count, limit)
    gaps = np.diff(positions, prepend=-1) - 1
    remainders = pack(gaps & ((1 << r) - 1), r)
    whole, rest = divmod(count * r, 8)
    unary = np.zeros(rest + count + int((gaps >> r).sum()), np.uint8)
    unary[rest + np.cumsum((gaps >> r) + 1) - 1] = 1
    code = bytearray(np.packbits(unary, bitorder="little"))
    if rest:
        code[0] |= remainders[-1]
    return remainders[:whole] + code


def decode_positions(code: memoryview, count: int, limit: int, name: str = "positions") -> NDArray[np.int64]:
    """`code` may be anything: no more than a byte for each of its bits, and `count` positions, are allocated."""
    if len(code) > most_code_bytes(count, limit):
        raise WireError(f"{name}: {len(code)} bytes for {count} below {limit}. No code of them is as long.")
    r = rice_parameter(count, limit) if count else 0
    whole, rest = divmod(count * r, 8)
    if packed_bytes(count, r) > len(code):
        raise WireError(f"{name}: {len(code)} bytes do not hold {count} remainders of {r} bits. The payload is cut.")
    ends = np.flatnonzero(_bits(code[whole:])[rest:])
    if len(ends) != count or (count and packed_bytes(count * r + int(ends[-1]) + 1, 1) != len(code)):
        raise WireError(f"{name}: {len(ends)} quotients, or bytes behind them. There must be {count}, and no more.")
    gaps = ((np.diff(ends, prepend=-1) - 1) << r) + unpack(code, count, r, np.dtype(np.int64))
    positions = np.cumsum(gaps + 1) - 1
    if count and int(positions[-1]) >= limit:
        raise WireError(f"{name}: the last is {positions[-1]}. They must be below {limit}.")
    return positions


def _bits(code: memoryview) -> NDArray[Any]:
    return np.unpackbits(np.frombuffer(code, np.uint8), bitorder="little")
