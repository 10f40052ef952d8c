"""One tensor of a payload: how it travels, and the limits of what may."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args

import torch

from atoll.errors import WireError
from atoll.wire.bit_packing import packed_bytes
from atoll.wire.positions import most_code_bytes

Kind = Literal["raw", "bits", "sorted"]
Coder = Literal["plain", "entropy", "zstd"]

# Their order is their number in a header: new ones come last.
KINDS: tuple[Kind, ...] = get_args(Kind)
CODERS: tuple[Coder, ...] = get_args(Coder)
DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8"),
    *("uint64", "uint32", "uint16", "uint8", "bool"),
)
TORCH: dict[str, torch.dtype] = {name: vars(torch)[name] for name in DTYPES}

MOST_AXES = 16
MOST_DEPTH = 32  # of nested dicts
MOST_PATH = 1 << 10  # bytes of UTF-8
MOST_LIMIT = 1 << 48
MOST_ENTROPY_BITS = 12  # a table of 2**bits frequencies travels along
LENGTH = 4  # bytes that say how long a part is, where that depends on data


class Encoding(TypedDict, total=False):
    """How a tensor travels, where not raw and plain: the fields of a `Part` that its shape does not give."""

    kind: Kind
    bits: int
    limit: int
    coder: Coder


@dataclass(frozen=True)
class Part:
    """One tensor of a payload, as it travels."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    kind: Kind = "raw"  # or "bits": below 2**bits, packed; or "sorted": strictly increasing positions below `limit`
    bits: int = 0
    limit: int = 0
    coder: Coder = "plain"  # or "entropy": of "bits"; or "zstd"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("dtype", self.dtype, DTYPES),
            ("kind", self.kind, KINDS),
            ("coder", self.coder, CODERS),
        ):
            if value not in known:
                raise self.error(f"{name} {value!r} is unknown. Use one of {', '.join(known)}.")
        if len(self.path.encode()) > MOST_PATH or self.path.count("/") >= MOST_DEPTH:
            raise self.error(f"its path has over {MOST_PATH} bytes or {MOST_DEPTH} levels. Use shorter names.")
        if len(self.shape) > MOST_AXES or min(self.shape, default=0) < 0:
            raise self.error(f"shape {self.shape}. There are up to {MOST_AXES} axes, and no length is negative.")
        {"raw": self._check_raw, "bits": self._check_bits, "sorted": self._check_sorted}[self.kind]()
        if self.coder == "entropy" and (self.kind != "bits" or self.bits > MOST_ENTROPY_BITS):
            raise self.error(f"entropy is for bits up to {MOST_ENTROPY_BITS}. Use coder = 'zstd', or quantise first.")

    def error(self, message: str) -> WireError:
        return WireError(f"{self.path[:MOST_PATH]}: {message}")

    def _check_raw(self) -> None:
        if self.bits or self.limit:
            raise self.error("a raw part has no bits and no limit. Use kind = 'bits' or 'sorted'.")

    def _check_bits(self) -> None:
        most = min(value_bits(self.dtype), 32)
        if self.limit or not 1 <= self.bits <= most:
            holds = f"It holds 1 to {most}, and has no limit." if most else "It holds no whole numbers: quantise first."
            raise self.error(f"{self.bits} bits of {self.dtype}. {holds}")

    def _check_sorted(self) -> None:
        if self.bits or len(self.shape) != 1 or not self.shape[0] <= self.limit <= MOST_LIMIT:
            raise self.error(f"shape {self.shape} below {self.limit}. Positions are one row of distinct ones.")
        if max(1, (self.limit - 1).bit_length()) > value_bits(self.dtype):
            raise self.error(f"{self.dtype} does not hold positions below {self.limit}. Use int64.")

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def decoded_bytes(self) -> int:
        """Of the tensor; an axis of length 0 does not hide the others."""
        return math.prod(max(n, 1) for n in self.shape) * TORCH[self.dtype].itemsize

    @property
    def plain_bytes(self) -> int:
        """Without a coder, at most; and exactly, where it does not depend on data."""
        if self.kind == "raw":
            return self.size * TORCH[self.dtype].itemsize
        if self.kind == "bits":
            return packed_bytes(self.size, self.bits)
        return LENGTH + most_code_bytes(self.size, self.limit)

    @property
    def fixed(self) -> bool:
        """Has it the same length for any data?"""
        return self.coder == "plain" and self.kind != "sorted"

    def fields(self) -> list[Any]:
        """As they stand in a header."""
        codes = KINDS.index(self.kind), DTYPES.index(self.dtype), CODERS.index(self.coder)
        return [self.path, codes[0], codes[1], self.shape, self.bits or self.limit, codes[2]]


def value_bits(dtype: str) -> int:
    """Of the unsigned integers that a type holds; 0 if it holds fractions."""
    if dtype == "bool":
        return 1
    return 0 if TORCH[dtype].is_floating_point else torch.iinfo(TORCH[dtype]).bits - TORCH[dtype].is_signed
