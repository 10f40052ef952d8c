"""A tree of tensors as the bytes of a payload, and back."""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import tree
from atoll.errors import WireError
from atoll.tree import Tree
from atoll.wire.bit_packing import pack, padding_is_zero, unpack
from atoll.wire.coders import CODED, STORED, compress, decompress, entropy_decode, entropy_encode
from atoll.wire.envelope import Envelope, open_envelope
from atoll.wire.header import read_header
from atoll.wire.layout import Layout
from atoll.wire.part import LENGTH, TORCH, Part
from atoll.wire.positions import decode_positions, encode_positions

MOST = 1 << 30  # bytes of decoded tensors, unless the caller allows more
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, eq=False)
class Payload:
    """What was sent: by whom, in which round, what it looked like, and the tensors."""

    kind: str
    round: int
    sender: int
    layout: Layout
    tree: Tree


def encode(layout: Layout, values: Tree, *, kind: str, round: int, sender: int) -> bytes:
    """The bytes of a payload. `kind` names the message: "update", "broadcast", or a protocol's own."""
    parts = zip(layout.parts, layout.tensors(values), strict=True)
    body = b"".join([piece for part, x in parts for piece in _encode_part(part, _host(x))])
    return Envelope(kind, round, sender, len(layout.header), len(body)).sealed(layout.header, body)


def decode(data: bytes, most: int = MOST) -> Payload:
    """The payload in some bytes, which may be anything: what is not one is a `WireError`.

    No tensor is made before its length was checked, and all of them together have no more than `most` bytes.
    """
    envelope, header, rest = open_envelope(memoryview(data))
    layout = read_header(bytes(header))
    decoded = sum(part.decoded_bytes for part in layout.parts)
    if decoded > most:
        raise WireError(f"payload: its tensors have {decoded} bytes; {most} are allowed. Raise `most` if you trust it.")
    tensors = []
    for part in layout.parts:
        x, rest = _decode_part(part, rest)
        tensors.append(x)
    if len(rest):
        raise WireError(f"payload: {len(rest)} bytes behind its last part. Its layout must describe all of it.")
    return Payload(envelope.kind, envelope.round, envelope.sender, layout, layout.unflatten(tensors))


def lengths(layout: Layout, stack: Tree) -> Tensor:
    """How many bytes each row of a stack takes, int64 (C,): by formula, or where there is none by encoding it."""
    if layout.measurable:
        return torch.vmap(layout.length)(stack)  # type: ignore[no-any-return]
    host = tree.to(stack, "cpu")
    rows = (tree.rows(host, i) for i in range(len(tree.leaves(stack)[0])))
    sizes = [len(encode(layout, row, kind="update", round=0, sender=0)) for row in rows]
    return torch.tensor(sizes, device=tree.device(stack))


def _host(x: Tensor) -> NDArray[Any]:
    """Flat, little-endian; bfloat16, which numpy does not know, as int16."""
    flat = x.detach().cpu().contiguous().flatten()
    values = (flat.view(torch.int16) if x.dtype == torch.bfloat16 else flat).numpy()
    return values.astype(values.dtype.newbyteorder("<"), copy=False)


def _encode_part(part: Part, values: NDArray[Any]) -> list[Any]:
    """The pieces that travel for one tensor."""
    _check_values(part, values)
    plain = _plain(part, values)
    if part.coder == "plain":
        return plain
    stored = b"".join(plain)
    code = _code(part, values, stored) if part.size else stored
    return _prefixed(part, CODED + code if len(code) < len(stored) else STORED + stored)


def _code(part: Part, values: NDArray[Any], plain: bytes) -> bytes:
    return entropy_encode(part, values) if part.coder == "entropy" else compress(part, plain)


def _plain(part: Part, values: NDArray[Any]) -> list[Any]:
    if part.kind == "raw":
        return [values.data]
    if part.kind == "bits":
        return [pack(values, part.bits)]
    return _prefixed(part, encode_positions(values.astype(np.int64), part.limit))


def _prefixed(part: Part, code: bytes) -> list[Any]:
    if len(code) >= 1 << 32:
        raise part.error(f"{len(code)} bytes. A coded part has fewer than 2**32: cut the tensor into several.")
    return [_LENGTH.pack(len(code)), code]


def _check_values(part: Part, values: NDArray[Any]) -> None:
    if part.kind == "raw" or not len(values):
        return
    least, greatest = int(values.min()), int(values.max())
    bound = part.limit if part.kind == "sorted" else 1 << part.bits
    if least < 0 or greatest >= bound:
        raise part.error(f"values from {least} to {greatest}. Its layout says 0 to {bound - 1}.")
    if part.kind == "sorted" and not (values[1:] > values[:-1]).all():
        raise part.error("positions do not increase. Sort them, and send each once.")


def _decode_part(part: Part, data: memoryview) -> tuple[Tensor, memoryview]:
    """One tensor, and the bytes behind it."""
    if part.coder == "plain":
        values, rest = _from_plain(part, data)
        return _tensor(part, values), rest
    content, rest = _unprefixed(part, data)
    mode, code = content[:1], content[1:]
    if mode == CODED and part.coder == "entropy":
        return _tensor(part, entropy_decode(part, code, _carrier(part))), rest
    if mode not in (STORED, CODED):
        raise part.error(f"mode {mode.hex() or 'none'} is unknown. 00 is stored, 01 is coded.")
    values, left = _from_plain(part, decompress(part, code) if mode == CODED else code)
    if len(left):
        raise part.error(f"{len(left)} bytes behind its end. Its length must be its own.")
    return _tensor(part, values), rest


def _from_plain(part: Part, data: memoryview) -> tuple[NDArray[Any], memoryview]:
    if part.kind == "sorted":
        code, rest = _unprefixed(part, data)
        return decode_positions(code, part.size, part.limit, part.path), rest
    here, rest = _cut(part, data, part.plain_bytes)
    if part.kind == "raw":
        return _from_raw(part, here), rest
    if not padding_is_zero(here, part.size * part.bits):
        raise part.error("bits behind its last number are not 0. Fill the last byte with zeros.")
    return unpack(here, part.size, part.bits, _carrier(part)), rest


def _from_raw(part: Part, data: memoryview) -> NDArray[Any]:
    if part.dtype == "bool" and (np.frombuffer(data, np.uint8) > 1).any():
        raise part.error("a bool that is neither 0 nor 1. Write one byte for each.")
    return np.frombuffer(data, _carrier(part).newbyteorder("<")).astype(_carrier(part))  # a copy: `data` may go


def _unprefixed(part: Part, data: memoryview) -> tuple[memoryview, memoryview]:
    first, rest = _cut(part, data, LENGTH)
    return _cut(part, rest, *_LENGTH.unpack(first))


def _cut(part: Part, data: memoryview, size: int) -> tuple[memoryview, memoryview]:
    if size > len(data):
        raise part.error(f"needs {size} bytes where {len(data)} are left. The payload is cut, or its shape is wrong.")
    return data[:size], data[size:]


def _carrier(part: Part) -> np.dtype[Any]:
    """The type in which numpy holds it."""
    return np.dtype("int16" if part.dtype == "bfloat16" else part.dtype)


def _tensor(part: Part, values: NDArray[Any]) -> Tensor:
    return torch.from_numpy(values.astype(_carrier(part), copy=False)).view(TORCH[part.dtype]).reshape(part.shape)
